"""What the two halves of a round cost. A round is one program, so the halves are timed as programs of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.decoding.argmax import argmax
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.round import draft
from specjax.mesh.hosts import agreed, shared
from specjax.mesh.shards import devices_of, on_shards
from specjax.models.protocol import Params
from specjax.state import commit

SAMPLES = 5
SAMPLE_SECONDS = 0.1
BUDGET_SECONDS = 3.0
"""A sample repeats a half for about `SAMPLE_SECONDS`; sampling stops early when the budget is used up."""

Half = Callable[[Decoder, Params, DecodeState], DecodeState]
"""A half of a round, after which it can be run again."""


@dataclass(frozen=True)
class RoundCost:
    """Device seconds of one round, medians.

    Attributes:
        draft: drafting all K tokens, 0 for plain decoding.
        verify: running the target over K + 1 rows, and commit.
    """

    draft: float
    verify: float

    @property
    def total(self) -> float:
        """The sum of both halves. A whole round also has acceptance and the host's share."""
        return self.draft + self.verify


def speedup_bound(tokens_per_round: float, plain: RoundCost, speculative: RoundCost) -> float:
    """How many times faster than plain decoding this can be: tau * t_decode(1) / (t_verify(K + 1) + t_draft)."""
    return tokens_per_round * plain.total / speculative.total


def round_cost(decoder: Decoder, params: Params, state: DecodeState) -> RoundCost:
    """Time the halves of a round that drafts K tokens, where `state` stands (its caches have the size that counts).

    `state` is consumed. What is computed is of no use: rounds are repeated in place, past any budget.
    """
    settings = state.settings
    state = replace(
        state,
        settings=replace(
            settings,
            n_drafts=jnp.full_like(settings.n_drafts, decoder.max_drafts),
            n_min=jnp.zeros_like(settings.n_min),
            p_min=jnp.zeros_like(settings.p_min),
            skip_streak=jnp.zeros_like(settings.skip_streak),
        ),
        budget=jnp.full_like(state.budget, decoder.rows + 1),
        streak=jnp.zeros_like(state.streak),
        skip=jnp.zeros_like(state.skip),
    )
    drafting = 0.0
    if decoder.drafts:
        drafting, state = _median_seconds(partial(_repeated, _draft_once, decoder, params), state)
    verifying, _ = _median_seconds(partial(_repeated, _verify_once, decoder, params), state)
    return RoundCost(draft=drafting, verify=verifying)


def _median_seconds(run: Callable[[DecodeState, Array], DecodeState], state: DecodeState) -> tuple[float, DecodeState]:
    def seconds_of(repeats: int) -> float:
        nonlocal state
        begin = time.perf_counter()
        state = jax.block_until_ready(run(state, jnp.int32(repeats)))
        return (time.perf_counter() - begin) / repeats

    seconds_of(1)  # compiles
    once = seconds_of(1)
    once = agreed(once) if shared(devices_of(state)) else once
    repeats = max(1, min(100, round(SAMPLE_SECONDS / once)))
    count = max(1, min(SAMPLES, int(BUDGET_SECONDS / (once * repeats))))
    return statistics.median(seconds_of(repeats) for _ in range(count)), state


@partial(jax.jit, static_argnames=("half", "decoder"), donate_argnames="state")
def _repeated(half: Half, decoder: Decoder, params: Params, state: DecodeState, repeats: Int[Array, ""]) -> DecodeState:
    """The state after so many repetitions of a half of a round, on one device or on the mesh of the parameters."""

    def run(parts: int, params: Params, state: DecodeState, repeats: Array) -> DecodeState:
        step = partial(half, decoder.shard(parts), params)
        return jax.lax.fori_loop(0, repeats, lambda _, state: step(state), state)

    return on_shards(run, params, state, repeats, out=lambda params, state, *_: state)


def _draft_once(decoder: Decoder, params: Params, state: DecodeState) -> DecodeState:
    drafter = decoder.drafter
    assert drafter is not None
    none = jnp.zeros_like(state.pending)
    tokens = jnp.zeros((len(none), decoder.rows), jnp.int32)
    shapes = jax.eval_shape(
        partial(decoder.target.verify, request=decoder.request), params, tokens, none, state.sequences
    )
    features = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes[0].features)
    proposal, _n_drafted = draft(decoder, params, state)
    assert proposal is not None
    window = drafter.observe(tokens, features, proposal.state)
    taken_back = None if window is None else window.commit(none)
    # The next repetition starts from another token: nothing of it can be moved out of the loop.
    sequences = replace(state.sequences, drafter=taken_back)
    return replace(state, sequences=sequences, pending=proposal.tokens[:, -1])


def _verify_once(decoder: Decoder, params: Params, state: DecodeState) -> DecodeState:
    k = decoder.max_drafts
    tokens = (state.pending[:, None] + jnp.arange(k + 1)) % decoder.target.vocab_size
    n_valid = jnp.full_like(state.pending, k + 1)
    output, window = decoder.target.verify(params, tokens, n_valid, state.sequences, request=decoder.request)
    assert output.logits is not None
    kept = commit(window, n_valid)
    sequences = replace(kept, drafter=state.sequences.drafter, length=state.sequences.length)
    return replace(state, sequences=sequences, pending=argmax(output.logits[:, -1]))
