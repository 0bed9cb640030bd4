"""`specjax.diverge` names what is wrong, where and why, of faults that are planted here; and healthy runs healthy."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diverging import DRAFTS, PROMPT, TOKENS, diverge
from flax import struct
from small_model import write_small_model

import specjax
from specjax.errors import SpecjaxError
from specjax.models.gemma4 import Gemma4Target
from specjax.models.protocol import Proposal
from specjax.models.qwen3_5 import Qwen35MTP, Qwen35Target
from specjax.state import KVCache, SequenceState, SequenceWindow

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> specjax.Model:
    """A gated delta net, an attention layer, and an MTP head that is often right."""
    return specjax.load(write_small_model(tmp_path_factory.mktemp("model") / "small.gguf"))


@pytest.fixture(scope="module")
def plain(hybrid: specjax.Model) -> list[int]:
    return hybrid.generate(PROMPT, max_tokens=TOKENS, draft=0).tokens


FAULTS = ("committed too far", "verified wrongly", "waits off by one", "fed off by one")


def faulty(model: specjax.Model, *faults: str) -> specjax.Model:
    """The model with such faults. They are data of its programs, which all of them share."""
    planted = {name: jnp.int32(name in faults) for name in FAULTS}
    target, drafter = FaultyTarget(model.target.config), FaultyMTP(model.target.config)
    return replace(model, target=target, drafter=drafter, params={**model.params, "faults": planted})


@dataclass
class TooFar:
    """A window that commits so many tokens more than it is told, if it has them."""

    window: Any
    more: jax.Array
    rows: int

    def commit(self, n: jax.Array) -> Any:
        return self.window.commit(jnp.minimum(n + self.more, self.rows))


@dataclass(frozen=True)
class FaultyTarget(Qwen35Target):
    """Its recurrent states are committed one token too far; or the logits of drafted rows are those of the tokens
    beside; or the hidden states that it gives to the drafter are those of the tokens before.
    """

    def verify(
        self, params: Any, tokens: jax.Array, n_valid: jax.Array, state: SequenceState, **settings: Any
    ) -> tuple[Any, SequenceWindow]:
        output, window = super().verify(params, tokens, n_valid, state, **settings)
        faults, logits, hidden = params["faults"], output.logits, output.features.final_hidden
        assert hidden is not None
        beside = logits.at[:, 1:].set(jnp.roll(logits[:, 1:], 1, axis=-1))
        before = jnp.concatenate([state.drafter.hidden[:, -1:], hidden[:, :-1]], axis=1)
        features = output.features._replace(final_hidden=jnp.where(faults["waits off by one"], before, hidden))
        logits = jnp.where(faults["verified wrongly"], beside, logits)
        recurrent, cache = window.layers
        layers = TooFar(recurrent, faults["committed too far"], tokens.shape[1]), cache
        return output._replace(logits=logits, features=features), window.replace(layers=layers)


@dataclass(frozen=True)
class FaultyMTP(Qwen35MTP):
    """What waited is fed one position too far."""

    def propose(self, params: Any, pending: jax.Array, state: SequenceState, **settings: Any) -> Proposal:
        fed = replace(state, length=state.length + params["faults"]["fed off by one"])
        return super().propose(params, pending, fed, **settings)


@struct.dataclass
class ForgetsATurn(KVCache):
    """A ring that does not write the first slot when it comes round."""

    def append(self, k: jax.Array, v: jax.Array, positions: jax.Array, valid: jax.Array) -> ForgetsATurn:
        again = (positions >= self.capacity) & (positions % self.capacity == 0)
        return super().append(k, v, positions, valid & ~(again & (self.window is not None)))


@dataclass(frozen=True)
class StaleRing(Gemma4Target):
    """One of its sliding layers has such a ring."""

    layer: int = 0

    def init_layers(self, *sizes: Any, **settings: Any) -> tuple[Any, ...]:
        layers = list(super().init_layers(*sizes, **settings))
        cache = layers[self.layer]
        layers[self.layer] = ForgetsATurn(**{field.name: getattr(cache, field.name) for field in fields(cache)})
        return tuple(layers)


@struct.dataclass
class LosesInPieces(KVCache):
    """A cache that does not write position 3 in a call of 16 tokens, as pieces of prompts have."""

    def append(self, k: jax.Array, v: jax.Array, positions: jax.Array, valid: jax.Array) -> LosesInPieces:
        return super().append(k, v, positions, valid & ~((positions == 3) & (positions.shape[1] == 16)))


@dataclass(frozen=True)
class FedWrongly(Qwen35Target):
    """Feeding itself is at fault: the run and what it is compared with agree."""

    def init_layers(self, *sizes: Any, **settings: Any) -> tuple[Any, ...]:
        recurrent, cache = super().init_layers(*sizes, **settings)
        return recurrent, LosesInPieces(**{field.name: getattr(cache, field.name) for field in fields(cache)})


def test_healthy_runs_are_called_healthy(hybrid: specjax.Model, plain: list[int]) -> None:
    for rollback in ("replay", "snapshot"):
        report = diverge(faulty(hybrid), {"draft": DRAFTS, "rollback": rollback}, plain)
        assert report.verdict == "equal", rollback
        assert report.ok
        assert report.equal == TOKENS
        state = report.sides[0].state
        assert state is not None
        assert state.healthy
        assert state.moments > TOKENS / (DRAFTS + 1)
        assert state.rounding < 1e-4
        assert state.drafted_alike == state.drafted > 0
        assert "state of A: right" in str(report)
        assert json.loads(json.dumps(report.as_document()))["sides"][0]["state"]["healthy"]


def test_a_recurrent_state_that_is_committed_too_far_is_named(hybrid: specjax.Model, plain: list[int]) -> None:
    report = diverge(faulty(hybrid, "committed too far"), {"draft": DRAFTS}, plain)
    assert report.verdict == "state gone wrong"
    assert not report.ok
    state = report.sides[0].state
    assert state is not None
    assert state.first is not None
    number, before, after, verified = state.first
    assert number >= 1
    assert after - before < verified  # a draft was rejected, and this one is in the state
    first = state.deviations[0]
    assert first.path == ("layer 0", "recurrent state")
    assert first.positions == (after - 1,)
    assert first.heads == tuple(range(hybrid.target.config.linear_value_heads))
    assert "1 token too many" in first.likely
    assert {each.path[0] for each in state.deviations if each.path[0].startswith("layer")} == {"layer 0"}
    assert "layer 0 recurrent state: wrong after position" in str(report)


def test_a_right_state_with_wrong_tokens_points_to_the_round(hybrid: specjax.Model, plain: list[int]) -> None:
    report = diverge(faulty(hybrid, "verified wrongly"), {"draft": DRAFTS}, plain)
    assert report.verdict == "state gone wrong"
    assert report.sides[0].state is not None
    assert report.sides[0].state.healthy
    assert "the round itself is wrong" in report.reason
    assert report.difference is not None
    assert [each.explained for each in report.difference.candidates] == [False, True]


def test_feeding_that_is_wrong_itself_is_not_taken_for_the_law(hybrid: specjax.Model, plain: list[int]) -> None:
    report = diverge(replace(hybrid, target=FedWrongly(hybrid.target.config)), {"draft": 0}, plain)
    assert report.verdict == "state gone wrong"
    state = report.sides[0].state
    assert state is not None
    assert state.of_feeding
    assert (state.deviations[0].path, state.deviations[0].positions) == (("layer 1", "keys"), (3,))
    assert "Already its text, fed in pieces" in str(report)


@pytest.mark.parametrize("fault", ["waits off by one", "fed off by one"])
def test_a_drafter_that_is_off_by_one_is_found_though_the_tokens_are_equal(
    hybrid: specjax.Model, plain: list[int], fault: str
) -> None:
    report = diverge(faulty(hybrid, fault), {"draft": DRAFTS}, plain)
    assert report.difference is None
    assert report.equal == TOKENS
    assert report.verdict == "state gone wrong"
    assert report.reason.endswith("The tokens are equal all the same.")
    state = report.sides[0].state
    assert state is not None
    assert state.first is not None
    number, before, after, _ = state.first
    assert (number, before) == (1, len(PROMPT))
    first = state.deviations[0]
    if fault == "waits off by one":
        assert first.path == ("drafter", "waiting hidden states")
        assert first.positions == (after - 1,)
        assert "1 token too few" in first.likely
    else:
        assert first.path[0] == "caught-up drafter"
        assert first.path[1:] == ("layer 0", "keys")
        assert (first.positions[0], first.slot) == (before, before)
        assert "as if nothing had been written" in first.likely


@pytest.mark.slow
def test_a_stale_slot_of_a_ring_is_named() -> None:
    model = specjax.load(FIXTURES / "gemma4/dense/model.gguf", drafter=FIXTURES / "gemma4/dense/assistant.gguf")
    prompt = np.random.default_rng(1).integers(0, model.target.vocab_size, 270).tolist()
    options = specjax.GenerateOptions(max_tokens=14, draft=2, ignore_eos=True)
    sliding = [index for index, kind in enumerate(model.target.state_kinds) if kind.attention.window is not None]
    layer = sliding[1]
    stale = replace(model, target=StaleRing(model.target.config, layer))
    report = specjax.diverge(stale, prompt, options, [])
    assert report.verdict == "state gone wrong", report
    state = report.sides[0].state
    assert state is not None
    keys, values = state.deviations[:2]
    ring = 24 + 256  # the window, and the longest call
    assert (keys.path, values.path) == ((f"layer {layer}", "keys"), (f"layer {layer}", "values"))
    assert (keys.positions, keys.slot) == ((ring,), 0)
    assert "still holds position 0, one turn of the ring (280 slots) before" in keys.likely


def test_a_near_tie_is_called_one(hybrid: specjax.Model, plain: list[int]) -> None:
    """Two rows of the output head that are nearly equal."""
    place = next(index for index, token in enumerate(plain) if index > 3 and token not in PROMPT)
    token, twin = plain[place], 250
    assert twin not in plain
    head = "lm_head" if "lm_head" in hybrid.params["target"] else "embed"
    weight = np.array(hybrid.params["target"][head]["weight"])
    weight[twin] = weight[token] * (1 - 1e-6)
    target = {**hybrid.params["target"], head: {"weight": jnp.asarray(weight)}}
    tied = replace(hybrid, params={**hybrid.params, "target": target})
    report = diverge(tied, {"draft": 0}, [*plain[:place], twin], states=False)
    assert report.verdict == "near-tie"
    found = report.difference
    assert found is not None
    assert (found.index, found.position) == (place, len(PROMPT) + place)
    assert [each.token for each in found.candidates] == [token, twin]
    assert [each.rank for each in found.candidates] == [1, 2]
    assert 0 < found.relative_margin < 1e-5
    assert found.rounding < 1e-5
    assert 0 < found.logit_rounding < 1e-5
    assert report.sides[0].why_not == "That was not asked for."


def test_tokens_that_the_model_does_not_say_are_anothers(hybrid: specjax.Model, plain: list[int]) -> None:
    logits = hybrid.logits([*PROMPT, *plain[:5]])[-1]
    third = int(np.argsort(-logits)[2])
    report = diverge(hybrid, {"draft": 0}, [*plain[:5], third, *plain[6:]], states=False)
    assert report.verdict == "another model"
    assert report.difference is not None
    ours, theirs = report.difference.candidates
    assert ours.explained
    assert ours.shortfall == 0
    assert not theirs.explained
    assert theirs.rank == 3
    assert theirs.shortfall == pytest.approx(float(logits.max() - logits[third]), rel=1e-3)
    outside = diverge(hybrid, {"draft": 0}, [*plain[:5], 10**6], states=False)
    assert "not in this model's vocabulary" in outside.reason


def test_other_draws_are_called_sampling(hybrid: specjax.Model) -> None:
    report = diverge(
        hybrid, {"seed": 1}, {"seed": 2}, states=False, temperature=1.0, accept="coupled", draft=0, max_tokens=12
    )
    assert report.verdict == "sampling"
    assert report.difference is not None
    assert [each.shortfall for each in report.difference.candidates] == [0, 0]


def test_what_cache_types_make_of_a_text_is_neither_a_tie_nor_a_fault(hybrid: specjax.Model) -> None:
    prompt, coarse = [75, 195, 96, 151, 116, 177], {"kv_type_k": "turbo2", "kv_type_v": "turbo2"}
    report = diverge(hybrid, {}, coarse, prompt=prompt, draft=0, max_tokens=8, states=False)
    assert report.verdict == "settings"
    assert report.ok
    assert report.difference is not None
    exact, rounded = report.difference.leads
    assert exact > 0 > rounded
    assert report.difference.relative_margin > report.difference.limit


def test_what_was_recorded_and_is_not_said_again_is_not_looked_into(
    hybrid: specjax.Model, plain: list[int], tmp_path: Path
) -> None:
    said = {"rule": "greedy", "draft": DRAFTS, "rollback": "replay", "kv_type_k": "f32", "kv_type_v": "f32", "seed": 0}
    path = tmp_path / "recorded.json"
    path.write_text(json.dumps({**said, "tokens": [*plain[:5], plain[5] ^ 1, *plain[6:]], "prompt_tokens": PROMPT}))
    report = diverge(faulty(hybrid), path, plain, prompt=None)
    assert report.verdict == "another model"
    assert report.equal == 5
    assert "says other tokens here" in report.sides[0].why_not


DRAFTERS: dict[str, tuple[str, str | None, int]] = {
    "three chained heads, rings": ("step3_5/flash/model.gguf", None, 3),
    "an assistant, rings": ("gemma4/dense/model.gguf", "gemma4/dense/assistant.gguf", 3),
    "EAGLE-3": ("drafter_target/model.gguf", "eagle3/specforge", 3),
    "DFlash": ("drafter_target/model.gguf", "dflash/specforge_sliding", 5),
    "a model": ("dense/qwen3/model.gguf", "dense/qwen3/model.gguf", 3),
    "n-grams": ("dense/llama/model.gguf", "ngram", 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAFTERS)
def test_healthy_states_of_every_kind_are_called_healthy(name: str) -> None:
    path, drafter, drafts = DRAFTERS[name]
    source = FIXTURES / str(drafter) if drafter and drafter != "ngram" else drafter
    model = specjax.load(FIXTURES / path, drafter=source)
    prompt = np.random.default_rng(0).integers(0, 250, 40).tolist()
    tokens = model.generate(prompt, max_tokens=TOKENS, draft=0, ignore_eos=True).tokens
    report = diverge(model, {"draft": drafts}, tokens, prompt=prompt, ignore_eos=True)
    assert report.verdict == "equal", report
    state = report.sides[0].state
    assert state is not None
    assert state.drafted_alike == state.drafted > 0


def test_prompts_that_differ_are_said_before_all_else(hybrid: specjax.Model, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(json.dumps({"tokens": [1, 2], "prompt_tokens": [5, *PROMPT]}))
    report = diverge(hybrid, {"draft": 0}, path)
    assert report.verdict == "another model"
    assert "their token 0 is 100 'd' and 5" in report.reason


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("drafts=3", "'drafts=3' in 'drafts=3' is no setting; give NAME=VALUE with one of max_tokens, draft"),
        ("draft=", "is no setting"),
        ({"draft": 99}, "draft at most 15"),
    ],
)
def test_settings_that_are_none_are_refused(hybrid: specjax.Model, source: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        diverge(hybrid, source)


def test_files_without_tokens_and_missing_prompts_are_refused(hybrid: specjax.Model, tmp_path: Path) -> None:
    path = tmp_path / "text.json"
    for text, said in (("{", "is not JSON"), ('{"text": "a"}', "holds no tokens"), ('["a"]', "give a list of token")):
        path.write_text(text)
        with pytest.raises(SpecjaxError, match=said):
            diverge(hybrid, path)
    with pytest.raises(SpecjaxError, match="there is no prompt"):
        diverge(hybrid, {"draft": 0}, [1, 2], prompt=None)
