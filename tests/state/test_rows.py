"""Sequences that are taken out of a state and put into another go on as if nothing had happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, PIECE, feed, ragged_prompts, start
from test_commit import ROUNDS, decoder
from tiny_models import DENSE, make_params
from unrotated import Unrotated
from wants import drafting

import checkpoints
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.decoding.round import RoundRecord
from specjax.decoding.seats import feed_rows
from specjax.models import registry
from specjax.models.dense import DenseTarget
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.drafters.ngram import NGram
from specjax.models.gemma4 import Gemma4Assistant
from specjax.models.protocol import Params
from specjax.models.registry import FAMILIES
from specjax.state import KVCache, KVTypes, SequenceState, put_rows, take_rows

FIXTURES = Path(__file__).parents[1] / "fixtures"
LENGTHS = (40, 3, 310, *range(10, 18))  # one is longer than the rings, which have a window of 24 and a chunk of 64
DRAFTS = 3
MOVED = np.array([2, 0, 1, 10, *range(3, 10)])  # where the rows come from
SLOW = ("snapshot", "rings-with-heads", "assistant", "ngrams-in-q8_0", "draft-model", "a-class-of-the-test")
"""What is held by the parts of other kinds, and by `test_new_part.py`."""
KINDS = ("replay", "snapshot", "rings-with-heads", "assistant", "ngrams-in-q8_0", "draft-model", "a-class-of-the-test")


@dataclass(frozen=True)
class UnrotatedTarget(DenseTarget):
    """A target with caches of another kind."""

    def init_layers(self, *sizes: Any, **settings: Any) -> tuple[Any, ...]:
        layers = super().init_layers(*sizes, **settings)
        return tuple(Unrotated(cache.keys, cache.values, cache.frequencies) for cache in layers)


@cache
def model(kind: str) -> tuple[Decoder, Params]:
    if kind in ("replay", "snapshot"):
        return decoder(kind), make_params(DENSE)  # of test_commit.py, whose programs are shared
    name = {"rings-with-heads": "step3_5/flash", "assistant": "gemma4/edge"}.get(kind, "dense/qwen3")
    loaded = checkpoints.load(FIXTURES / name / "model.gguf", FAMILIES)
    (target, drafter), params = registry.build(loaded.config), loaded.params
    if kind == "assistant":
        assistant = checkpoints.load(FIXTURES / name / "assistant", FAMILIES, need_tokenizer=False)
        drafter, params = Gemma4Assistant(loaded.config, assistant.config), {**params, **assistant.params}
    elif kind == "draft-model":
        noisy = jax.tree.map(lambda x: x + 0.05 * np.random.default_rng(0).normal(size=x.shape).astype(x.dtype), params)
        drafter, params = DraftModel(target, target.vocab_size), {**params, "draft": noisy}
    elif kind != "rings-with-heads":
        drafter = NGram(shortest=1)
    if kind == "a-class-of-the-test":
        target = UnrotatedTarget(loaded.config)
    types = KVTypes("q8_0", "q8_0") if kind == "ngrams-in-q8_0" else KVTypes()
    return Decoder(target, drafter, max_drafts=DRAFTS, kv_types=types), params


@cache
def fed(kind: str) -> tuple[SequenceState, jax.Array]:
    """What the prompts leave."""
    of, params = model(kind)
    return feed(of, params, ragged_prompts(of.target.config, LENGTHS, seed=2))


@cache
def before(kind: str) -> tuple[DecodeState, Any]:
    """Some rounds after the prompts, and the records of them."""
    of, params = model(kind)
    state, logits = jax.tree.map(jnp.copy, fed(kind))
    some = jnp.full((len(LENGTHS),), CAPACITY, jnp.int32)
    started = start(of, state, logits, some, drafting(len(LENGTHS), n_max=DRAFTS), jnp.arange(len(LENGTHS)))[0]
    return decode_chunk(of, params, started, ROUNDS)


def after(kind: str, state: DecodeState) -> Any:
    """The records of some more rounds, and the lengths after them."""
    of, params = model(kind)
    state, chunk = decode_chunk(of, params, jax.tree.map(jnp.copy, state), ROUNDS)
    return jax.tree.map(np.asarray, (chunk.rounds, state.sequences.length))


def garbage(kind: str, capacity: int) -> SequenceState:
    """A state in which no number is one."""

    def spoilt(x: jax.Array) -> jax.Array:
        return jnp.full(x.shape, jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else 7, x.dtype)

    return jax.tree.map(spoilt, model(kind)[0].init_state(len(LENGTHS), capacity, chunk=64))


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind in SLOW)) for kind in KINDS])
def test_sequences_go_on_in_other_rows_of_another_state_bit_for_bit(kind: str) -> None:
    """Also where drafts were rejected before, and whatever stood in those rows."""
    state, record = before(kind)
    drafted, accepted = (np.asarray(x) for x in (record.rounds.n_drafted, record.rounds.n_accepted))
    assert (accepted < drafted).any()
    rounds, length = after(kind, state)
    drafts, tokens = drafted_and_emitted(rounds)
    taken = take_rows(state.sequences, jnp.asarray(MOVED), int(max(state.sequences.length)))
    others = jax.tree.map(lambda x: x[MOVED] if x.ndim else x, replace(state, sequences=None))
    for capacity in (CAPACITY, CAPACITY + 128) if kind in ("rings-with-heads", "draft-model") else (CAPACITY,):
        moved = replace(others, sequences=put_rows(garbage(kind, capacity), taken, jnp.arange(len(LENGTHS))))
        got_rounds, got_length = after(kind, moved)
        np.testing.assert_array_equal(got_length, length[MOVED])
        for got, want in zip(drafted_and_emitted(got_rounds), (drafts, tokens), strict=True):
            np.testing.assert_array_equal(got, want[:, MOVED])
        if capacity == CAPACITY:  # sums over more slots may be rounded otherwise
            np.testing.assert_array_equal(next_logits(kind, moved), next_logits(kind, state)[MOVED])


def drafted_and_emitted(rounds: RoundRecord) -> tuple[np.ndarray, np.ndarray]:
    """The drafts that were verified, and the tokens that were emitted; -1 for what means nothing."""
    return tuple(
        np.where(np.arange(x.shape[-1]) < count[..., None], x, -1)
        for x, count in ((rounds.drafts, rounds.n_drafted), (rounds.tokens, rounds.n_emitted))
    )  # fmt: skip


def next_logits(kind: str, state: DecodeState) -> np.ndarray:
    """Of the pending token and another one after it."""
    of, params = model(kind)
    tokens = jnp.stack([state.pending, (state.pending + 1) % 60], axis=1)
    output, _ = jax.jit(of.target.verify)(params, tokens, jnp.full_like(state.pending, 2), state.sequences)
    assert output.logits is not None
    return np.asarray(output.logits)


@pytest.mark.parametrize("kind", ["replay", "rings-with-heads"])
def test_a_copy_outlives_its_state_and_can_be_put_as_often_as_one_likes(kind: str) -> None:
    of, params = model(kind)
    state = jax.tree.map(jnp.copy, fed(kind)[0])
    taken = take_rows(state, jnp.array([2]), CAPACITY)
    want = jax.tree.map(np.asarray, jax.tree.map(jnp.copy, taken))
    more = np.ones((len(LENGTHS), PIECE), np.int32)
    feed_rows(of.target, of.drafter, params, state, None, more, more[:, 0])
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(state)), "the program must have consumed the state"
    for row in (0, 1):
        batch = put_rows(garbage(kind, CAPACITY), taken, jnp.array([row]))
        jax.tree.map(np.testing.assert_array_equal, take_rows(batch, jnp.array([row]), CAPACITY), want)


def test_rows_out_of_range_are_left_out() -> None:
    state, _ = before("replay")
    pair = take_rows(state.sequences, jnp.array([0, 2]), CAPACITY)
    got = put_rows(jax.tree.map(jnp.copy, state.sequences), pair, jnp.array([1, len(LENGTHS)]))
    want = take_rows(state.sequences, jnp.array([0, 0, *range(2, len(LENGTHS))]), CAPACITY)
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize(("capacity", "other"), [(8, 64), (64, 9), (64, 64)])
def test_a_ring_fits_into_a_state_in_which_it_cannot_go_round_and_back(capacity: int, other: int) -> None:
    """A ring has no more slots than its state has positions."""
    rng, length, window = np.random.default_rng(0), 8, 5

    def ring(capacity: int) -> KVCache:
        return KVCache.ring(1, capacity, 1, 4, KVTypes(), window=window, longest_call=6)

    q, k, v = rng.normal(size=(3, 1, length + 1, 1, 4)).astype(np.float32)
    first, last = ring(capacity), np.array([[length]])
    append = jax.jit(KVCache.append)
    for position in range(length):
        at = np.array([[position]])
        first = append(first, k[:, position, None], v[:, position, None], at, at >= 0)
    second = jax.tree.map(lambda x: jnp.full_like(x, jnp.nan), ring(other)).put(first, jnp.array([0]))
    whole = append(
        KVCache.zeros(1, length + 1, 1, 4, KVTypes()), k, v, np.arange(length + 1)[None], np.ones((1, 9), bool)
    )
    attend = jax.jit(partial(KVCache.attend, scale=1.0))
    want = attend(replace(whole, window=window), q[:, -1:], last)
    got = attend(append(second, k[:, -1:], v[:, -1:], last, last >= 0), q[:, -1:], last)
    np.testing.assert_allclose(got, want, rtol=1e-5)
