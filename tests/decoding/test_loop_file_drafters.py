"""EAGLE-3 and block drafters of files through the whole loop: what they keep of a text, and the tokens of the target.

Accept counts are scripted, so that every count comes up in every batch, next to rows that are finished and idle.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import attached, greedy, target
from scripted import CAPACITY, HEAD, Scripted, feed, ragged_prompts, run, script, start
from tiny_models import relative_rms

from specjax.decoding.acceptance import Rule, propose_token
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.settings import DraftConfig, RowSettings, SamplerConfig, Settings
from specjax.models.drafters.dflash import DFlashDrafter
from specjax.models.drafters.eagle3 import Eagle3Drafter
from specjax.models.protocol import Drafter, FeatureRequest, Features, Params
from specjax.state import KVCache, KVTypes, SequenceState

LENGTHS = (1, 2, 24, 130)  # the last one is longer than the rings of sliding layers
MAX_TOKENS = 230
ROUNDS = 26
WARM = SamplerConfig(temperature=0.7, top_k=20, top_p=0.95)
SAMPLERS = (SamplerConfig(), WARM, SamplerConfig(), WARM)  # of the rows of one batch, where they are not all greedy
BUDGETS = (MAX_TOKENS, MAX_TOKENS, 40, MAX_TOKENS)  # one row is finished early, and idle beside the others
CASES = {
    "eagle3/specforge": 3,
    "eagle3/speculators_layers": 4,
    "dflash/specforge_sliding": 7,
    "dflash/specforge": 15,
    "dspark/speculators_rnn": 5,
}


@dataclass(frozen=True)
class ScriptedEagle3(Scripted, Eagle3Drafter):
    """EAGLE-3 with scripted drafts."""


@dataclass(frozen=True)
class ScriptedDFlash(Scripted, DFlashDrafter):
    """A block drafter with scripted drafts."""


def drafter(folder: str) -> tuple[Any, Params]:
    own, params = attached(folder)
    kind = ScriptedEagle3 if isinstance(own, Eagle3Drafter) else ScriptedDFlash
    return kind(own.target, own.config), params  # type: ignore[attr-defined]


def prompts() -> list[list[int]]:
    return ragged_prompts(target()[0].config, LENGTHS, seed=5)  # type: ignore[attr-defined]


def samplers(rule: Rule) -> tuple[SamplerConfig, ...]:
    return (SamplerConfig(),) * len(LENGTHS) if rule == "greedy" else SAMPLERS


def settings(drafts: int, rule: Rule) -> list[Settings]:
    return [Settings(sampler, DraftConfig(n_max=drafts)) for sampler in samplers(rule)]


def decoder(own: Drafter | None, drafts: int, rule: Rule) -> Decoder:
    return Decoder(target()[0], own, rule, drafts, margins=True)


@cache
def plain(rule: Rule) -> list[list[int]]:
    """What each row says without drafts."""
    rows = settings(0, rule)
    result = run(decoder(None, 0, rule), target()[1], prompts(), MAX_TOKENS, rows=rows, rounds_per_chunk=64)
    assert result.rounds.margin is not None
    clear = [not row.greedy for row in samplers(rule)] | (result.rounds.margin[:, :, 0].min(axis=0) > 5e-4)
    assert clear.all(), "near-ties: equality would hang on rounding"
    return result.tokens


@cache
def texts(rule: Rule) -> np.ndarray:
    """Prompts and continuations, [B, CAPACITY]."""
    whole = np.zeros((len(LENGTHS), CAPACITY), np.int32)
    for row, (prompt, tokens) in enumerate(zip(prompts(), plain(rule), strict=True)):
        joined = [*prompt, *tokens]
        whole[row, : len(joined)] = joined
    return whole


@cache
def every_feature(rule: Rule) -> tuple[jax.Array, ...]:
    """The inputs of all layers of the target over the whole texts, and the output of the last one."""
    model, params = target()
    layers = model.init_layers(len(LENGTHS), CAPACITY, rows=1, chunk=CAPACITY, rollback="replay", kv_types=KVTypes())
    state = SequenceState(layers, None, jnp.zeros((len(LENGTHS),), jnp.int32))
    request = FeatureRequest(layer_inputs=tuple(range(model.num_layers + 1)))
    feed_all = jax.jit(partial(model.extend, request=request, rows="none"))
    output, _ = feed_all(params, texts(rule), jnp.full((len(LENGTHS),), CAPACITY), state)
    return output.features.layer_inputs


def correct_drafts(drafts: int) -> np.ndarray:
    """How many drafts of a round are right, by row and the position that it starts at; row 1 takes its own drafts."""
    correct = np.random.default_rng(1 + drafts).integers(0, drafts + 1, (len(LENGTHS), CAPACITY))
    correct[1] = HEAD
    return correct


class Next(NamedTuple):
    """What a drafter would draft next: the logits of each step [B, K, M], and how sure it is."""

    logits: jax.Array
    confidence: jax.Array


def next_drafts(own: Drafter, params: Params, heard: Any, pending: jax.Array, length: jax.Array, count: int) -> Next:
    sequences = SequenceState((), heard, length)
    unscripted: Any = super(Scripted, own)
    made = unscripted.propose(
        params,
        pending,
        sequences,
        num_drafts=count,
        choose=greedy,
        keep_going=lambda confidence, made: confidence >= 0,
    )
    return Next(made.logq, made.confidence)


def spoiled(own: Any, heard: Any, length: jax.Array) -> Any:
    """The state with rubbish wherever it must not be read: rows that do not wait, and slots that no later row sees."""
    held = length - heard.count  # what stands in the caches; the rest waits
    if isinstance(own, Eagle3Drafter):
        rows = heard.hidden.shape[1]
        waits = jnp.arange(rows) >= rows - heard.count[:, None]
        tokens = jnp.where(waits[:, :-1], heard.tokens, 2**30)
        heard = replace(heard, hidden=jnp.where(waits[..., None], heard.hidden, jnp.nan), tokens=tokens)
    else:
        waits = jnp.arange(heard.features.shape[1]) < heard.count[:, None]
        heard = replace(heard, features=jnp.where(waits[..., None], heard.features, jnp.nan))

    def spoil(cache: KVCache, window: int | None) -> KVCache:
        slots, end = jnp.arange(cache.capacity), held[:, None] - 1
        positions = slots if window is None else end - (end - slots) % cache.capacity
        unseen = (positions > end) | (positions < 0)
        if window is not None:
            unseen |= positions < length[:, None] - window - heard.count[:, None]
        return jax.tree.map(
            lambda x: jnp.where(unseen[..., None, None], 1e20, x) if x.ndim == 4 and x.dtype == jnp.float32 else x,
            cache,
        )

    kv = tuple(spoil(cache, window) for cache, window in zip(heard.kv, own.config.windows, strict=True))
    return replace(heard, kv=kv)


@partial(jax.jit, static_argnames=("own", "count"))
def both_ways(
    own: Any, count: int, params: Params, state: DecodeState, tokens: jax.Array, features: Features
) -> tuple[Next, Next, Any]:
    """The next drafts of the state with rubbish in it, those of a fresh drafter fed the text, and that state."""
    length, batch = state.sequences.length, len(LENGTHS)
    bad = spoiled(own, state.sequences.drafter, length)
    fresh = own.init_state(batch, CAPACITY, rows=count + 1, chunk=CAPACITY)
    fresh = own.extend(params, tokens, features, length, fresh, jnp.zeros_like(length))
    got = next_drafts(own, params, bad, state.pending, length, count)
    return got, next_drafts(own, params, fresh, state.pending, length, count), bad


@pytest.mark.parametrize(
    ("folder", "rule"),
    [("eagle3/specforge", "greedy"), *(pytest.param(case, "coupled", marks=pytest.mark.slow) for case in CASES)],
)
def test_after_every_round_the_state_is_that_of_a_fresh_drafter_and_the_text_that_of_the_target(
    folder: str, rule: Rule
) -> None:
    """In every round rubbish is put wherever the drafter must not look: it changes neither drafts nor text."""
    count, (own, params) = CASES[folder], drafter(folder)
    want, correct = plain(rule), correct_drafts(CASES[folder])
    params = script(params, prompts(), want, correct)
    features = Features(layer_inputs=tuple(every_feature(rule)[index] for index in own.request.layer_inputs))
    speculating = decoder(own, count, rule)
    fed, logits = feed(speculating, params, prompts())
    rows = speculating.settings(settings(count, rule))
    state, _ = start(speculating, fed, logits, jnp.asarray(BUDGETS), rows, jnp.arange(len(LENGTHS)))
    got, seen, rounds = [[int(token)] for token in state.pending], set(), 0
    while rounds < ROUNDS and bool(state.active.any()):
        drafts, fresh, bad = both_ways(own, count, params, state, texts(rule), features)
        for mine, wanted in zip(drafts, fresh, strict=True):
            assert relative_rms(mine, wanted) < 1e-5, f"round {rounds}"
        state = replace(state, sequences=replace(state.sequences, drafter=bad))
        state, chunk = decode_chunk(speculating, params, state, 1)
        for row in np.flatnonzero(chunk.rounds.n_emitted[0]):
            got[row] += chunk.rounds.tokens[0, row, : chunk.rounds.n_emitted[0, row]].tolist()
            if chunk.rounds.n_drafted[0, row] == count:
                seen.add(int(chunk.rounds.n_accepted[0, row]))
        rounds += 1
    assert rounds >= 24
    assert seen == set(range(count + 1))
    assert len(got[2]) == BUDGETS[2]
    assert got == [tokens[: len(mine)] for tokens, mine in zip(want, got, strict=True)]


@pytest.mark.parametrize("folder", ["eagle3/specforge", "dflash/specforge"])
def test_an_end_of_text_inside_a_draft_ends_the_row(folder: str) -> None:
    count, (own, params) = CASES[folder], drafter(folder)
    want, speculating = plain("greedy"), decoder(own, count, "greedy")
    # The first of a row's tokens that occurs there for the first time and is not the last one of its round.
    at = [
        next(i for i in range(5 + row, 60) if i % (count + 1) and tokens[i] not in tokens[:i])
        for row, tokens in enumerate(want)
    ]
    rows = [
        replace(each, stop_tokens=(tokens[index],))
        for each, tokens, index in zip(settings(count, "greedy"), want, at, strict=True)
    ]
    scripted = script(params, prompts(), want, count)
    result = run(speculating, scripted, prompts(), MAX_TOKENS, rows=rows, rounds_per_chunk=1)
    assert result.tokens == [tokens[: index + 1] for tokens, index in zip(want, at, strict=True)]
    ends = [result.rounds.n_emitted[:, row][result.rounds.n_emitted[:, row] > 0][-1] for row in range(len(want))]
    assert all(0 < end <= count for end in ends)


def drafts_of(own: Any, params: Params, count: int, choose: Any, room: int) -> Any:
    """A proposal after a prompt of each row, of the given program for choosing, by a state with room for more."""

    @jax.jit
    def propose(params: Params, state: SequenceState) -> Any:
        made: Any = super(Scripted, own)
        return made.propose(
            params,
            jnp.arange(len(LENGTHS)) + 7,
            replace(state, drafter=own.narrowed(params, state.drafter, state.length, count + 1)),
            num_drafts=count,
            choose=choose,
            keep_going=lambda confidence, made: confidence >= 0,
        )

    params = script(
        params, prompts(), plain("greedy"), 0
    )  # not read here: with it, prompts are fed by the same program
    state, _ = feed(decoder(own, room, "greedy"), params, prompts())
    return propose(params, state)


@pytest.mark.parametrize(
    "folder",
    [
        "eagle3/specforge",
        pytest.param("eagle3/speculators_layers", marks=pytest.mark.slow),
        pytest.param("dflash/speculators", marks=pytest.mark.slow),
        pytest.param("dflash/dflash2", marks=pytest.mark.slow),
        "dspark/speculators_vanilla",
    ],
)
def test_probabilities_of_drafts_are_exact_and_zero_outside_the_drafters_tokens(folder: str) -> None:
    """What rejection sampling divides by: a distribution over the target's vocabulary."""
    own, params = drafter(folder)
    rows = RowSettings.of([Settings(SamplerConfig(temperature=0.8))] * len(LENGTHS))

    def choose(logits: jax.Array, position: jax.Array, tokens: Any = None, before: Any = None) -> Any:
        size = target()[0].vocab_size
        choice = propose_token(
            logits, tokens, vocab_size=size, rule="rejection", settings=rows, sequence=position, position=position
        )
        names = jnp.arange(size)[None] if tokens is None else tokens
        at = jnp.arange(len(logits))[:, None], names
        want = jnp.full((len(logits), size), -jnp.inf).at[at].set(jax.nn.log_softmax(logits / 0.8))
        return choice._replace(logq=jnp.concatenate([choice.logq, want], axis=-1))

    proposal = drafts_of(own, params, 3, choose, room=3)
    logq, want = np.split(np.asarray(proposal.logq), 2, axis=-1)
    np.testing.assert_allclose(logq, want, atol=1e-4)
    np.testing.assert_allclose(np.exp(logq).sum(-1), 1, atol=1e-5)
    drawn = np.take_along_axis(logq, np.asarray(proposal.tokens)[..., None], axis=-1)
    assert (drawn > -np.inf).all()
    if own.config.maps_tokens:
        name = "eagle3" if isinstance(own, Eagle3Drafter) else "dflash"
        outside = np.setdiff1d(np.arange(logq.shape[-1]), params[name]["tokens"])
        assert len(outside) > 100
        assert (logq[..., outside] == -np.inf).all()


@pytest.mark.parametrize(
    ("folder", "causal"),
    [
        ("dflash/specforge", False),
        pytest.param("dflash/specforge", True, marks=pytest.mark.slow),
        pytest.param("dspark/speculators_rnn", False, marks=pytest.mark.slow),
        pytest.param("dspark/speculators_rnn", True, marks=pytest.mark.slow),
    ],
)
def test_fewer_drafts_are_the_first_ones_of_the_block(folder: str, causal: bool) -> None:
    """Slots are left out only where no slot sees a later one."""
    own, params = drafter(folder)
    own = replace(own, config=replace(own.config, causal=(causal,) * len(own.config.windows)))
    whole, few = (drafts_of(own, params, count, greedy, room=CASES[folder]) for count in (CASES[folder], 2))
    assert relative_rms(few.logq, whole.logq[:, :2]) < 1e-5
