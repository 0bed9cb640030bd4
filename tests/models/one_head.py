"""What a model with one MTP head computes, step by step, to be compared with references."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tiny_models import relative_rms

import checkpoints
from specjax.models import registry
from specjax.models.parts.mtp import RepeatedHead
from specjax.models.protocol import Choice, FeatureRequest, Params, Proposal, Target
from specjax.state import KVTypes, RollbackStrategy, SequenceState, commit

TOLERANCE = 1e-5  # relative RMS, float32
DRAFTS = 3
CAPACITY = 256


@cache
def load(path: Path) -> tuple[Any, Params]:
    """The config and the parameters of a fixture."""
    checkpoint = checkpoints.load(path, registry.FAMILIES)
    return checkpoint.config, checkpoint.params


@cache
def reference(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as arrays:
        return dict(arrays)


def build(config: Any) -> tuple[Target, RepeatedHead | None]:
    target, drafter = registry.build(config)
    assert drafter is None or isinstance(drafter, RepeatedHead)
    return target, drafter


def assert_close(got: jax.Array, want: np.ndarray) -> None:
    assert relative_rms(got, want) <= TOLERANCE


@partial(jax.jit, static_argnums=(0, 4))
def prefill(
    config: Any, params: Params, tokens: jax.Array, count: int, rollback: RollbackStrategy
) -> tuple[jax.Array, jax.Array, SequenceState]:
    """Logits [T, V] and final hidden states [T, D] of the first `count` tokens, and the state after them."""
    target, drafter = build(config)
    n_valid, calls = jnp.array([count]), {"rows": DRAFTS + 1, "chunk": len(tokens), "kv_types": KVTypes()}
    layers = target.init_layers(1, CAPACITY, rollback=rollback, **calls)
    state = SequenceState(layers, None, jnp.zeros((1,), jnp.int32))
    request = FeatureRequest(final_hidden=True)
    out, after = target.extend(params, tokens[None], n_valid, state, request=request, rows="all")
    assert out.logits is not None
    assert out.features.final_hidden is not None
    head = None
    if drafter is not None:
        head = drafter.init_state(1, CAPACITY, **calls)
        head = drafter.extend(params, tokens[None], out.features, n_valid, head, state.length)
    return out.logits[0], out.features.final_hidden[0], SequenceState(after.layers, head, after.length)


def after_prompt(
    config: Any, params: Params, want: Mapping[str, np.ndarray], rollback: RollbackStrategy = "replay"
) -> tuple[jax.Array, SequenceState]:
    """The greedy token after a reference's prompt, and the state, by the program that was fed all of its tokens."""
    count = len(want["prompt"])
    logits, _, state = prefill(config, params, np.concatenate([want["prompt"], want["greedy"]]), count, rollback)
    return jnp.argmax(logits[count - 1 : count], axis=-1), state


def decode(config: Any, params: Params, pending: jax.Array, state: SequenceState, count: int) -> list[int]:
    """The pending token and the greedy choices after it, `count` tokens in all: every draft is rejected."""
    rejected, tokens = jnp.zeros((1, DRAFTS), pending.dtype), []
    for _ in range(count):
        tokens.append(int(pending[0]))
        pending, state = verify(config, params, pending, rejected, state.drafter, state, jnp.array([0]))
    return tokens


@partial(jax.jit, static_argnums=0)
def head_over(config: Any, params: Params, tokens: jax.Array, trunk_hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The head's hidden states [T, D] and logits [T, V], given the trunk's hidden states."""
    _, drafter = build(config)
    assert drafter is not None
    shifted = jnp.pad(trunk_hidden, ((1, 0), (0, 0)))[None, :-1]
    positions = jnp.arange(len(tokens))[None]
    cache = drafter.init_cache(1, CAPACITY, KVTypes())
    hidden, _ = drafter.run(params, tokens[None], shifted, positions, positions >= 0, cache)
    return hidden[0], drafter.logits(params, hidden[0])


def exposed(drafter: RepeatedHead) -> RepeatedHead:
    """The head, whose logits carry the hidden state that they were made from behind them."""

    class Exposed(type(drafter)):  # type: ignore[misc]
        def logits(self, params: Params, hidden: jax.Array) -> jax.Array:
            return jnp.concatenate([super().logits(params, hidden), hidden], axis=-1)

    return Exposed(drafter.config)


@partial(jax.jit, static_argnums=0)
def propose(config: Any, params: Params, pending: jax.Array, state: SequenceState) -> Proposal:
    """Greedy drafts; `logq` has the logits, and the hidden states behind them."""

    def choose(logits: jax.Array, position: jax.Array, before: Any = None) -> Choice:
        return Choice(jnp.argmax(logits[:, : config.vocab_size], axis=-1), logits, jnp.ones(position.shape))

    _, drafter = build(config)
    assert drafter is not None
    return exposed(drafter).propose(
        params,
        pending,
        state,
        num_drafts=DRAFTS,
        choose=choose,
        keep_going=lambda confidence, made: confidence > 0,
    )


@partial(jax.jit, static_argnums=0)
def verify(
    config: Any, params: Params, pending: jax.Array, drafts: jax.Array, head: Any, state: SequenceState, n: jax.Array
) -> tuple[jax.Array, SequenceState]:
    """Accept n drafts, whatever the target says; its choice after them, and the state. The head's is after drafting."""
    target, drafter = build(config)
    tokens = jnp.concatenate([pending[:, None], drafts], axis=1)
    n_valid = jnp.full_like(n, tokens.shape[1])
    request = FeatureRequest() if drafter is None else drafter.request
    out, window = target.verify(params, tokens, n_valid, state, request=request)
    assert out.logits is not None
    if drafter is not None:
        window = window.replace(drafter=drafter.observe(tokens, out.features, head))
    return jnp.argmax(out.logits, axis=-1)[jnp.arange(len(n)), n].astype(pending.dtype), commit(window, n + 1)


def assert_drafts(
    config: Any,
    params: Params,
    pending: jax.Array,
    state: SequenceState,
    want: Mapping[str, np.ndarray],
    index: int,
) -> Proposal:
    """The drafts of a round are the reference's, and logits and hidden states agree with its own."""
    assert int(pending[0]) == want["pending"][index]
    proposal = propose(config, params, pending, state)
    assert proposal.tokens[0].tolist() == want["draft_tokens"][index].tolist()
    assert proposal.logq is not None
    logits, hidden = jnp.split(proposal.logq[0], [config.vocab_size], axis=-1)
    assert_close(logits, want["draft_logits"][index])
    assert_close(hidden, want["draft_hidden"][index])
    return proposal


def assert_rounds(
    config: Any, params: Params, pending: jax.Array, state: SequenceState, want: Mapping[str, np.ndarray]
) -> None:
    """Tokens, logits and hidden states of every draft agree, in every round, after every count of accepted drafts."""
    assert set(want["accepted"]) == set(range(DRAFTS + 1))
    for index, accepted in enumerate(want["accepted"]):
        made = assert_drafts(config, params, pending, state, want, index)
        pending, state = verify(config, params, pending, made.tokens, made.state, state, jnp.array([accepted]))
