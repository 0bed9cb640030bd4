"""Several drafters on one target: what they say together, who serves whom, and what those that do not serve keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import Run, feed, run, start

import checkpoints
import specjax
from specjax.decoding.acceptance import DrawingRule
from specjax.decoding.decoder import Decoder
from specjax.decoding.round import draft
from specjax.decoding.settings import DraftConfig, RowSettings, SamplerConfig, Settings
from specjax.models.drafters.first_of import FirstOf
from specjax.models.drafters.ngram import NGram
from specjax.models.protocol import Choice, Drafter, Proposal
from specjax.models.qwen3_5 import Qwen35MTP
from specjax.runtime.drafters import open_drafters
from specjax.runtime.loading import bundled_model
from specjax.state import KVTypes, SequenceState

FIXTURES = Path(__file__).parent / "fixtures"
TOKENS, DRAFTS = 96, 2
NGRAM = NGram()
TEXTS = (
    "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in range(",
    "x = [1, 2, 3]\ny = [",
    "def main():\n    parser = argparse.ArgumentParser()\n    parser.add_argument('--x')\n    parser.",
)
SAMPLERS = (SamplerConfig(), SamplerConfig(temperature=0.8), SamplerConfig(temperature=0.8))


@cache
def bundled() -> specjax.Model:
    return specjax.load(drafter=[NGRAM, "mtp"])


def prompts() -> list[list[int]]:
    tokenizer = bundled().tokenizer
    assert tokenizer is not None
    return [tokenizer.encode(text) for text in TEXTS]


def rows(stops: Sequence[tuple[int, ...]] = ((),) * len(SAMPLERS)) -> list[Settings]:
    """Greedy rows, and rows by the coupled rule."""
    draft = DraftConfig(n_max=DRAFTS)
    return [Settings(sampler, draft, stop_tokens=stop) for sampler, stop in zip(SAMPLERS, stops, strict=True)]


def decoded(drafter: Any, wanted: list[Settings] | None = None, rule: DrawingRule = "coupled") -> Run:
    decoder = Decoder(bundled().target, drafter, rule, DRAFTS)
    return run(decoder, dict(bundled().params), prompts(), TOKENS, rows=wanted or rows())


def head() -> Drafter:
    return bundled().drafter.drafters[1]


@cache
def plain() -> list[list[int]]:
    wanted = [replace(row, draft=DraftConfig(n_max=0)) for row in rows()]
    return run(
        Decoder(bundled().target, None, "coupled", 0), dict(bundled().params), prompts(), TOKENS, rows=wanted
    ).tokens


@cache
def both() -> Run:
    return decoded(bundled().drafter)


def test_tokens_are_those_of_plain_decoding_while_both_serve_rows_of_a_round() -> None:
    assert both().tokens == plain()
    drafted = both().rounds.n_drafted > 0
    served = [drafted & (both().rounds.source == number) for number in range(2)]
    assert np.sum(np.any(served[0], axis=1) & np.any(served[1], axis=1)) > 5
    for rounds in served:
        accepted = both().rounds.n_accepted[rounds]
        assert len(set(accepted.tolist())) >= 3, "drafts that fail, and drafts that stand"


def test_the_head_drafts_as_from_a_state_that_was_fed_the_text_at_once() -> None:
    """Its state is kept up in rounds in which others serve some rows or all of them."""
    rounds = both().rounds
    drafted, of_head = rounds.n_drafted > 0, rounds.source == 1
    said = 1 + np.cumsum(rounds.n_emitted, axis=0) - rounds.n_emitted
    after_others = np.roll(drafted & ~of_head, 1, axis=0) & (said > 1)
    unused = np.roll(~np.any(drafted & of_head, axis=1, keepdims=True), 1, axis=0) & (said > 1)
    places = np.argwhere(drafted & of_head)
    assert np.sum(drafted & of_head & after_others) > 5
    assert np.sum(drafted & of_head & unused) > 2

    decoder = Decoder(bundled().target, head(), "coupled", DRAFTS)
    texts = [[*prompts()[row], *plain()[row][: said[index, row] - 1]] for index, row in places]
    state, logits = feed(decoder, dict(bundled().params), texts)
    wanted = decoder.settings([rows()[row] for _, row in places])
    budget = jnp.full((len(texts),), DRAFTS + 2)
    fresh, _ = start(decoder, state, logits, budget, wanted, jnp.asarray(places[:, 1]))
    proposal, _ = jax.jit(draft, static_argnums=0)(decoder, dict(bundled().params), fresh)
    assert proposal is not None
    for want, (index, row) in zip(proposal.tokens, places, strict=True):
        count = rounds.n_drafted[index, row]
        assert rounds.drafts[index, row, :count].tolist() == want[:count].tolist()


def of_row(rounds: Any, row: int) -> list[tuple[list[int], int]]:
    """What was drafted in the rounds of a row, and how many of it stood."""
    going = np.flatnonzero(rounds.n_emitted[:, row])
    drafts = [rounds.drafts[index, row, : rounds.n_drafted[index, row]].tolist() for index in going]
    return list(zip(drafts, rounds.n_accepted[going, row].tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_a_row_of_one_drafter_drafts_what_this_drafts_alone(rule: DrawingRule) -> None:
    """Round by round, greedy and drawn, beside rows that want others."""
    alone = [decoded(drafter, rule=rule) for drafter in bundled().drafter.drafters]
    free = both() if rule == "coupled" else decoded(bundled().drafter, rule=rule)
    for wanted in (((0,), (1,), None), ((1,), None, (0,)), (None, (0,), (1,)), ((1,), (0,), (1, 0))):
        each = [replace(row, drafters=drafters) for row, drafters in zip(rows(), wanted, strict=True)]
        got = decoded(bundled().drafter, each, rule)
        for row, drafters in enumerate(wanted):
            want = alone[drafters[0]] if drafters is not None and len(drafters) == 1 else free
            assert got.tokens[row] == want.tokens[row]
            assert of_row(got.rounds, row) == of_row(want.rounds, row)
            assert any(accepted for _, accepted in of_row(got.rounds, row))
            source = got.rounds.source[got.rounds.n_drafted[:, row] > 0, row]
            assert set(source.tolist()) == set(drafters or (0, 1))
        assert rule != "coupled" or got.tokens == plain()


def test_a_row_without_a_drafter_that_is_there_is_decoded_plainly() -> None:
    got = decoded(
        bundled().drafter,
        [replace(row, drafters=drafters) for row, drafters in zip(rows(), ((), (2,), (30,)), strict=True)],
    )
    assert got.tokens == plain()
    assert not got.rounds.n_drafted.any()


@dataclass(frozen=True)
class Says(specjax.BaseDrafter):
    """Drafts one token again and again."""

    token: int

    def propose(self, params: Any, pending: jax.Array, state: Any, *, num_drafts: int, **_: Any) -> Proposal:
        return Proposal.sure(jnp.full((len(pending), num_drafts), self.token), None)


def test_a_list_within_a_list_counts_as_one_drafter() -> None:
    drafter = FirstOf((Says(5), FirstOf((Says(6), Says(7))), Says(8)))
    part = drafter.init_state(3, 1, rows=2, chunk=1, kv_types=KVTypes())
    settings = RowSettings.of([Settings(drafters=(number,)) for number in range(3)])
    proposal = drafter.propose(
        {},
        jnp.zeros(3, int),
        SequenceState((), part, jnp.zeros(3, int)),
        num_drafts=1,
        choose=None,  # type: ignore[arg-type]
        keep_going=lambda confidence, made, drafter=0: settings.may_draft(drafter),
    )
    assert proposal.tokens.tolist() == [[5], [6], [8]]
    assert proposal.source is not None
    assert proposal.source.tolist() == [0, 1, 2]


def test_a_text_that_ends_inside_a_draft_ends_there() -> None:
    """In each row in which a draft goes on behind a token that had not been said before."""
    cuts: list[int | None] = []
    for row, tokens in enumerate(plain()):
        accepted, emitted = both().rounds.n_accepted[:, row], both().rounds.n_emitted[:, row]
        inside = [
            at
            for start, count in zip(1 + np.cumsum(emitted) - emitted, accepted, strict=True)
            for at in range(start, start + count - 1)
            if tokens.index(tokens[at]) == at
        ]
        cuts.append(inside[0] if inside else None)
    assert sum(cut is not None for cut in cuts) > 1
    stops = [() if cut is None else (tokens[cut],) for tokens, cut in zip(plain(), cuts, strict=True)]
    got = decoded(bundled().drafter, rows(stops))
    want = [tokens if cut is None else tokens[: cut + 1] for tokens, cut in zip(plain(), cuts, strict=True)]
    assert got.tokens == want
    history = got.state.sequences.drafter.parts[0]
    for row, (prompt, tokens) in enumerate(zip(prompts(), got.tokens, strict=True)):
        assert history.tokens[row, : history.length[row]].tolist() == [*prompt, *tokens][: history.length[row]]
        assert history.length[row] == got.state.sequences.length[row]


CHOICES: list[None] = []


@dataclass(frozen=True)
class Counted(Qwen35MTP):
    """The head, which tells of each time that it computes a draft."""

    def choose_next(self, params: Any, *args: Any) -> Choice:
        jax.debug.callback(lambda: CHOICES.append(None))
        return super().choose_next(params, *args)


@pytest.mark.slow
def test_a_drafter_that_serves_nobody_drafts_nothing() -> None:
    CHOICES.clear()
    got = decoded(FirstOf((NGRAM, Counted(bundled().config))))
    jax.effects_barrier()
    assert got.tokens == plain()
    drafts = np.max(np.where(got.rounds.source == 1, got.rounds.n_drafted, 0), axis=1)
    assert 5 < np.sum(drafts > 0) < len(drafts) - 3
    assert len(CHOICES) == drafts.sum()


@dataclass(frozen=True)
class Poison(specjax.BaseDrafter):
    """Has no drafts for rows whose pending token is even, and says nonsense about them."""

    def propose(self, params: Any, pending: jax.Array, state: Any, *, num_drafts: int, **_: Any) -> Proposal:
        serves = pending % 2 == 1
        tokens = jnp.where(serves[:, None], pending[:, None], -(2**30))
        nonsense = jnp.full((len(pending), num_drafts, bundled().target.vocab_size), jnp.nan)
        certain = jax.nn.log_softmax(1e3 * jax.nn.one_hot(jnp.maximum(tokens, 0), nonsense.shape[-1]))
        return Proposal(
            tokens=jnp.broadcast_to(tokens, nonsense.shape[:2]),
            logq=jnp.where(serves[:, None, None], jnp.broadcast_to(certain, nonsense.shape), nonsense),
            confidence=jnp.where(serves[:, None], jnp.ones(nonsense.shape[:2]), jnp.nan),
            state=None,
            made=jnp.where(serves, num_drafts, 0),
        )


@pytest.mark.slow
def test_what_a_drafter_says_of_rows_that_it_does_not_serve_is_not_read() -> None:
    wanted = [replace(row, draft=DraftConfig(DRAFTS, p_min=0.2)) for row in rows()]
    got = decoded(FirstOf((Poison(), head())), wanted, "rejection")
    assert got.tokens[0] == plain()[0], "the greedy row"
    assert np.all(got.rounds.finite)
    assert {0, 1} == set(got.rounds.source[got.rounds.n_drafted > 0].tolist())
    assert all(0 <= token < bundled().target.vocab_size for tokens in got.tokens for token in tokens)


@pytest.mark.slow
def test_a_head_that_is_not_sure_enough_gives_way() -> None:
    """`p_min` decides by the first draft, before it is drawn."""
    wanted = [replace(row, draft=DraftConfig(DRAFTS, p_min=0.9)) for row in rows()]
    got = decoded(FirstOf((head(), NGram(shortest=1))), wanted)
    assert got.tokens == plain()
    assert {0, 1} == set(got.rounds.source[got.rounds.n_drafted > 0].tolist())


@pytest.mark.slow
def test_the_depth_can_be_found_with_several_drafters() -> None:
    texts = list(TEXTS)
    found = bundled().generate_batch(texts, max_tokens=TOKENS, draft="auto", ignore_eos=True)
    assert found[0].tokens == plain()[0]
    drafted = [enumerate(each.stats.drafted_by_drafter) for each in found]
    assert {number for counts in drafted for number, count in counts if count > 0} == {0, 1}


@pytest.mark.slow
def test_a_draft_vocabulary_is_that_of_the_head_alone() -> None:
    """N-grams draft any token."""
    trimmed = specjax.load(drafter=[NGRAM, "mtp"], draft_vocab=600)
    assert trimmed.drafter is not None
    decoder = Decoder(bundled().target, trimmed.drafter, "coupled", DRAFTS)
    got = run(decoder, dict(trimmed.params), prompts(), TOKENS, rows=rows())
    assert got.tokens == plain()
    known = np.asarray(trimmed.params["trimmed"]["tokens"])
    places = np.arange(DRAFTS) < got.rounds.n_drafted[..., None]
    by_head = places & (got.rounds.source == 1)[..., None]
    assert np.isin(got.rounds.drafts[by_head], known).all()
    assert not np.isin(got.rounds.drafts[places & ~by_head], known).all()


def test_a_list_is_ngrams_that_are_sure_before_others_and_the_last_as_it_is_alone() -> None:
    opened = checkpoints.open_checkpoint(bundled_model(), specjax.FAMILIES)
    assert open_drafters(["ngram", "ngram"], opened).drafter == FirstOf((NGram.before_others(), NGram()))
    assert NGram.before_others().shortest > NGram().shortest
    assert open_drafters(["ngram"], opened).drafter == NGram()
    assert open_drafters("mtp", opened).drafter == head()


def test_a_list_without_drafters_is_refused() -> None:
    with pytest.raises(ValueError, match="name at least one drafter"):
        FirstOf(())


def test_a_model_names_all_that_draft() -> None:
    assert "drafted for by NGram and Qwen35MTP," in repr(bundled())


@pytest.mark.parametrize(
    ("folder", "drafters", "message"),
    [
        ("dense/qwen3/hf", ["ngram", "mtp"], "has no MTP head, which the drafter 'mtp' names"),
        ("dense/qwen3/hf", [], "the list of drafters is empty"),
        ("dense/qwen3/hf", [FIXTURES / "dense/qwen3/hf"] * 2, "two drafters of the list have parameters called draft"),
    ],
)
def test_lists_that_cannot_be_are_refused(folder: str, drafters: list[Any], message: str) -> None:
    with pytest.raises(specjax.SpecjaxError, match=message):
        specjax.load(FIXTURES / folder, drafter=drafters)
