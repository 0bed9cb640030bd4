"""The tool that looks for losses finds drafters that are broken, says in what, and leaves others alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from small_model import CONFIG, write_small_model

import specjax
from specjax.analysis.lossless.drafts import check_drafts
from specjax.analysis.lossless.report import Check, Report, Statistic
from specjax.analysis.lossless.rows import Fed, Sampling
from specjax.analysis.lossless.statistics import (
    chi_square,
    independent_uniform,
    places,
    same_distribution,
    uniform,
)
from specjax.analysis.lossless.texts import check_texts, draw_texts, without_drafts
from specjax.decoding.acceptance import DrawingRule
from specjax.decoding.settings import DraftConfig
from specjax.models.protocol import Proposal
from specjax.models.qwen3_5 import Qwen35MTP

PROMPTS = [[100, 101, 102, 32], [5, 9, 200]]
WARM = specjax.GenerateOptions(max_tokens=24, temperature=1.0)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small.gguf")


def drawn_logq(proposal: Proposal) -> jax.Array:
    """The log-probabilities of the tokens that were drawn, [B, K]."""
    assert proposal.logq is not None
    return jnp.take_along_axis(proposal.logq, proposal.tokens[..., None], axis=-1)[..., 0]


def flattened(proposal: Proposal) -> Proposal:
    """States the probabilities of another temperature."""
    return proposal._replace(logq=jax.nn.log_softmax(proposal.logq / 1.5))


def unnormalised(proposal: Proposal) -> Proposal:
    """States probabilities that sum to more than 1."""
    return proposal._replace(logq=proposal.logq + 0.1)


def certain(proposal: Proposal) -> Proposal:
    """States that the token it drew was certain. Given the draft, it is."""
    return proposal._replace(logq=jnp.log(jax.nn.one_hot(proposal.tokens, CONFIG.vocab_size)))


def flatter_draws(proposal: Proposal) -> Proposal:
    """States more for the token that it drew than for others of the same probability."""
    drawn = jax.nn.one_hot(proposal.tokens, CONFIG.vocab_size)
    return proposal._replace(logq=jax.nn.log_softmax(proposal.logq + drawn))


def stops_at_odd_draws(proposal: Proposal) -> Proposal:
    """Drops a draft, and those behind it, when the token that was drawn has an odd number."""
    return proposal._replace(made=jnp.cumprod(1 - proposal.tokens % 2, axis=1).sum(axis=1))


def confident_in_draws(proposal: Proposal) -> Proposal:
    """Is as confident as the token that was drawn is probable."""
    return proposal._replace(confidence=jnp.exp(drawn_logq(proposal)))


def stops_by_the_text(proposal: Proposal) -> Proposal:
    """Makes two drafts or three, by the first draft: known before the third is drawn."""
    return proposal._replace(made=2 + proposal.tokens[:, 0] % 2)


CHANGES = (
    *(flattened, unnormalised, certain, flatter_draws),
    *(stops_at_odd_draws, confident_in_draws, stops_by_the_text),
)
OTHERS = ("one noise", "wrong state")
WAYS = ("honest", *(change.__name__.replace("_", " ") for change in CHANGES), *OTHERS)


@dataclass(frozen=True)
class Head(Qwen35MTP):
    """The head of the model, which drafts in one of these ways. Which is data, so that all share their programs.

    With one noise, all drafts of a round are drawn with that of one position. With the wrong state it is honest.
    """

    def propose(self, params: Any, pending: jax.Array, state: Any, *, choose: Callable, **kwargs: Any) -> Proposal:
        way, hidden = params["way"], state.drafter.hidden
        wrong = jnp.where(way == WAYS.index("wrong state"), jnp.sin(1e3 * hidden), hidden)

        def somewhere(logits: jax.Array, position: jax.Array, tokens: Any = None, before: Any = None) -> Any:
            there = jnp.where(way == WAYS.index("one noise"), state.length + 1, position)
            return choose(logits, there, tokens, before)

        state = replace(state, drafter=replace(state.drafter, hidden=wrong))
        honest = super().propose(params, pending, state, choose=somewhere, **kwargs)
        if honest.logq is None:
            return honest
        honest = honest._replace(made=jnp.full_like(pending, honest.tokens.shape[1]))
        proposals = [honest, *(change(honest) for change in CHANGES), *(honest for _ in OTHERS)]
        chosen = {
            name: jnp.stack([getattr(each, name) for each in proposals])[way] for name in ("logq", "confidence", "made")
        }
        return honest._replace(**chosen)


@dataclass(frozen=True)
class Unstated(Qwen35MTP):
    """Draws, and does not say from what: bad, but honest enough."""

    def propose(self, *args: Any, **kwargs: Any) -> Proposal:
        return super().propose(*args, **kwargs)._replace(logq=None)


@cache
def with_head(path: Path, *before: str) -> specjax.Model:
    """The model with the head, after other drafters."""
    head = Head(CONFIG)
    return specjax.load(path, drafter=[*before, head] if before else head)


def drafting(path: Path, way: str, *before: str) -> specjax.Model:
    """The same, drafting in this way."""
    model = with_head(path, *before)
    return replace(model, params={**model.params, "way": jnp.int32(WAYS.index(way))})


def feds(model: specjax.Model, options: specjax.GenerateOptions) -> list[Fed]:
    return [Fed(model.decoder(options), model.params, prompt, 8) for prompt in PROMPTS]


def sampling(count: int, draft: DraftConfig = DraftConfig(3)) -> Sampling:
    return Sampling(WARM.settings(draft), 8, count)


def failures(checks: list[Check]) -> dict[str, str]:
    """The findings of checks that failed, by their names."""
    report = Report("", tuple(checks), 1e-6, 0)
    return {check.name: "; ".join(report.findings(check)) for check in report.failed}


def drafts_of(model: specjax.Model, draft: DraftConfig = DraftConfig(3)) -> dict[str, str]:
    return failures(check_drafts(feds(model, WARM), sampling(1024, draft), np.random.default_rng(0)))


@pytest.mark.parametrize(
    ("way", "check", "finding"),
    [
        ("flattened", "draws", r"counts of draft 1 after prompt 1 .*: p = .*places of draft 1 in its prob"),
        ("one noise", "draws", "places of drafts 1 and 2 together: p = "),
        ("unnormalised", "stated probabilities", r"of draft 1 sum to 1\.1052"),
        ("flatter draws", "draws", "places of draft 1 in its probabilities: p ="),
        ("stops at odd draws", "what is verified", "draft 1 is verified in .*% of rounds .* on what was drawn"),
        ("confident in draws", "what is verified", r"the confidence in draft 1 is from 0\.0.* to 0\."),
    ],
    ids=lambda value: value if value in WAYS else "",
)
def test_a_broken_drafter_is_found_and_the_fault_is_named(path: Path, way: str, check: str, finding: str) -> None:
    found = drafts_of(drafting(path, way))
    assert set(found) <= {check, "draws"}
    assert re.search(finding, found[check]), found


@pytest.mark.parametrize("way", ["honest", "wrong state", "stops by the text", "certain"])
def test_an_honest_drafter_passes_however_bad_it_is(path: Path, way: str) -> None:
    assert drafts_of(drafting(path, way), DraftConfig(3, p_min=0.3 * (way == "honest"))) == {}


@pytest.mark.parametrize("drafter", [Unstated(CONFIG), specjax.NGram()], ids=["unstated", "ngram"])
def test_drafters_that_state_no_probabilities_pass(path: Path, drafter: Any) -> None:
    assert drafts_of(specjax.load(path, drafter=drafter)) == {}


def test_a_drafter_that_scores_some_tokens_states_their_probabilities(path: Path) -> None:
    assert drafts_of(specjax.load(path, draft_vocab=140)) == {}


@pytest.mark.slow
def test_a_drafter_that_scores_some_tokens_passes_all_checks(path: Path) -> None:
    specjax.assert_lossless(specjax.load(path, draft_vocab=140), PROMPTS[:1], WARM)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "fits"), [("certain", True), ("flattened", False)])
def test_texts_show_whether_a_drafter_lies_under_both_rules(path: Path, way: str, fits: bool) -> None:
    rng, model, drawing = np.random.default_rng(0), drafting(path, way), sampling(1500)
    plain = feds(model, replace(WARM, draft=0))
    texts = [draw_texts(each, each, without_drafts(drawing), rng) for each in plain]
    rules: tuple[DrawingRule, ...] = ("rejection", "block")
    for rule in rules:
        drawn = [
            draw_texts(*pair, drawing, rng) for pair in zip(feds(model, replace(WARM, accept=rule)), plain, strict=True)
        ]
        found = failures([check_texts(rule, drawn, texts, drawing)])
        assert ("places of all tokens: p = " not in found.get(f"texts, {rule}", "")) == fits, found


@pytest.mark.slow  # `specjax check` does the same in tests/cli/test_check.py
def test_assert_lossless_passes_the_head(path: Path) -> None:
    report = specjax.assert_lossless(specjax.load(path), PROMPTS[:1], WARM, samples=128)
    assert report.ok
    assert len(report.checks) == 10
    assert "all 10 checks passed" in str(report)


def test_one_group_of_checks_can_be_asked_for(path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = specjax.check_lossless(
        drafting(path, "honest"),
        *(PROMPTS[:1], WARM),
        samples=128,
        only=["drafts"],
        progress=lambda *counts: told.append(counts),
    )
    assert [each.name for each in report.checks] == ["what is verified", "stated probabilities", "draws"]
    assert told == [(3, 3)]


def test_assert_lossless_names_what_a_broken_drafter_does(path: Path) -> None:
    """Of a list, that of the drafter that is asked for."""
    model = drafting(path, "stops at odd draws", "ngram")
    honest, broken = (replace(WARM, draft_by=name) for name in ("ngram", "Head"))
    assert specjax.assert_lossless(model, PROMPTS[:1], honest, samples=128, only=["drafts"]).ok
    with pytest.raises(specjax.NotLosslessError, match="FAILED what is verified") as raised:
        specjax.assert_lossless(model, PROMPTS[:1], broken, samples=128, only=["drafts"])
    assert isinstance(raised.value, AssertionError)
    assert [check.name for check in raised.value.report.failed] == ["what is verified"]
    assert "look at: Proposal.made" in str(raised.value)


def test_what_cannot_be_checked_is_refused(path: Path, tmp_path: Path) -> None:
    headless = specjax.load(write_small_model(tmp_path / "headless.gguf", mtp=False))
    with pytest.raises(specjax.SpecjaxError, match="has no drafter, so nothing can be lost"):
        specjax.check_lossless(headless)
    model = specjax.load(path)
    with pytest.raises(ValueError, match="draft is 0, so that nothing is drafted"):
        specjax.check_lossless(model, options=specjax.GenerateOptions(draft=0))
    with pytest.raises(ValueError, match="would bias"):
        specjax.check_lossless(model, options=specjax.GenerateOptions(draft=DraftConfig(3, n_min=2, p_min=0.5)))
    with pytest.raises(ValueError, match="draft_by is 'eagle', but the model's drafters are 'mtp'"):
        specjax.check_lossless(model, options=specjax.GenerateOptions(draft_by="eagle"))
    with pytest.raises(ValueError, match="samples is 0"):
        specjax.check_lossless(model, samples=0)
    for only in ("drafts", [], ["draws"]):
        with pytest.raises(ValueError, match="give a list of some of 'rules', 'drafts', 'tokens', 'texts'"):
            specjax.check_lossless(model, only=only)


# Statistics --------------------------------------------------------------------------------------------------------


def p_values(draw: Callable[[np.random.Generator], float], count: int = 2000) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.array([draw(rng) for _ in range(count)])


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: chi_square(rng.multinomial(500, ZIPF), 500 * ZIPF),
        lambda rng: uniform(rng.random(400)),
        lambda rng: independent_uniform(rng.random(700), rng.random(700)),
        lambda rng: same_distribution(rng.choice(len(ZIPF), 300, p=ZIPF), rng.choice(len(ZIPF), 300, p=ZIPF)),
    ],
    ids=["counts", "uniform", "pairs", "two samples"],
)
def test_false_alarms_are_as_rare_as_stated(draw: Callable[[np.random.Generator], float]) -> None:
    p = p_values(draw)
    for level in (0.5, 0.1, 0.01):
        assert stats.binomtest(int(np.sum(p < level)), len(p), level).pvalue > 1e-4, (level, np.mean(p < level))


ZIPF = 1 / np.arange(1, 60) ** 1.3
ZIPF /= ZIPF.sum()


def test_places_of_drawn_tokens_are_uniform_and_those_of_others_are_not() -> None:
    rng = np.random.default_rng(0)
    tokens, share = rng.choice(len(ZIPF), 5000, p=ZIPF), rng.random(5000, np.float32)
    logp = np.log(np.broadcast_to(ZIPF, (5000, len(ZIPF))), dtype=np.float32)
    place, p = map(np.asarray, places(logp, tokens, share))
    np.testing.assert_allclose(p, ZIPF[tokens], rtol=1e-5)
    assert uniform(place) > 1e-3
    assert uniform(np.asarray(places(1.1 * logp, tokens, share)[0])) < 1e-6


def test_the_threshold_shares_the_alarm_rate_among_all_tests() -> None:
    tests = (Statistic("one", 1e-7), Statistic("two", 0.5))
    report = Report(
        "a model", (Check("a", "?", "tried", tests=tests), Check("b", "?", "tried", ("it burns",))), 1e-6, 1
    )
    assert report.threshold == 5e-7
    assert [check.name for check in report.failed] == ["a", "b"]
    assert "one: p = 1.0e-07" in str(report)
    assert "2 of 2 checks failed" in str(report)
    assert not report.as_document()["ok"]


@pytest.mark.slow
def test_texts_with_a_grammar_a_bias_and_penalties_are_lossless(path: Path) -> None:
    """Its drafter keeps to the grammar, and what is drawn has the distribution that all three leave."""
    bias = {token: 1.0 - token % 4 for token in range(0, CONFIG.vocab_size, 3)}
    options = replace(WARM, regex="(?:[a-h]{2}|x[0-9]+|de){3,9}", logit_bias=bias, frequency_penalty=0.7)
    specjax.assert_lossless(specjax.load(path), PROMPTS, options, samples=256)
