"""DFlash, DFlash 2 and DSpark drafters against the modules of SpecForge and speculators, from their files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import TOLERANCE, attached, greedy, peer
from tiny_models import relative_rms

from specjax.models.drafters.dflash import DFlashDrafter
from specjax.models.drafters.dflash.state import FeatureState
from specjax.models.protocol import Features, Params, Proposal
from specjax.state import KVTypes, SequenceState

BLOCKS = [f"dflash/{name}" for name in ("specforge", "specforge_sliding", "speculators", "speculators_non_causal")]
SPARKS = [
    f"dspark/{name}"
    for name in ("specforge_vanilla", "specforge_rnn", "speculators_vanilla", "speculators_gated", "speculators_rnn")
]
SLOW = ("dflash/speculators", "dspark/speculators_rnn")
"""What they have, others have too: windows and slots of theirs, a recurrence, a Markov head of hidden states alone."""
CAPACITY = 48
LONGEST = 16


def folders(names: Sequence[str]) -> pytest.MarkDecorator:
    """The test for each of these drafters."""
    marked = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in names]
    return pytest.mark.parametrize("folder", marked)


def drafter(folder: str) -> tuple[DFlashDrafter, Params]:
    own, params = attached(folder)
    assert isinstance(own, DFlashDrafter)
    return own, params


@partial(jax.jit, static_argnums=0)
def take_in(
    own: DFlashDrafter, params: Params, features: jax.Array, n: jax.Array, state: FeatureState, length: jax.Array
) -> FeatureState:
    """Features of n committed tokens more, as a verification leaves them."""
    layers = tuple(features[None, :, index] for index in range(features.shape[1]))
    window = own.observe(jnp.zeros((1, len(features)), jnp.int32), Features(layer_inputs=layers), state)
    return window.commit(n)


@partial(jax.jit, static_argnums=0)
def propose(
    own: DFlashDrafter, params: Params, pending: jax.Array, state: FeatureState, length: jax.Array
) -> tuple[Proposal, jax.Array]:
    """As many greedy drafts as a block has, and the hidden states of its slots."""
    count = own.config.num_drafts
    kv = own.inject(params, state.waiting(length), state.kv)
    hidden, _ = own.block(params, pending, length, kv, count)
    sequences = SequenceState((), state, length)
    return (
        own.propose(
            params,
            pending,
            sequences,
            num_drafts=count,
            choose=greedy,
            keep_going=lambda confidence, made: confidence >= 0,
        ),
        hidden,
    )


@cache
def rounds(folder: str) -> tuple[DFlashDrafter, Params, list[tuple[Proposal, jax.Array]]]:
    """All rounds of a reference: the first tokens come as a prompt, the others as verified ones."""
    own, params = drafter(folder)
    want = peer(folder)
    first = int(want["lengths"][0])
    layers = tuple(jnp.asarray(want["features"][None, :first, i]) for i in range(own.config.num_features))
    empty = own.init_state(1, CAPACITY, rows=LONGEST, chunk=first, kv_types=KVTypes())
    zero = jnp.zeros((1,), jnp.int32)
    prompt = jnp.zeros((1, first), jnp.int32)
    extend = jax.jit(own.extend)
    state = extend(params, prompt, Features(layer_inputs=layers), jnp.array([first]), empty, zero)
    made, known = [], first
    for length, pending in zip(want["lengths"].tolist(), want["pending"], strict=True):
        if length > known:
            rows = np.zeros((LONGEST, *want["features"].shape[1:]), np.float32)
            rows[: length - known] = want["features"][known:length]
            # What is behind the accepted tokens must not be read.
            rows[length - known :] = 1e4
            state = take_in(own, params, rows, jnp.array([length - known]), state, jnp.array([known]))
        made.append(propose(own, params, jnp.asarray(pending)[None], state, jnp.array([length])))
        drafted = made[-1][0].state
        assert isinstance(drafted, FeatureState)
        state, known = drafted, length
    return own, params, made


@folders([*BLOCKS, "dflash/dflash2", *SPARKS])
def test_blocks_equal_those_of_the_trainer_round_by_round(folder: str) -> None:
    _, _, made = rounds(folder)
    want = peer(folder)
    for (_, hidden), of_round in zip(made, want["hidden"], strict=True):
        assert relative_rms(hidden[0], of_round) <= TOLERANCE


@folders(BLOCKS)
def test_drafts_are_the_best_tokens_of_the_trainers_slots(folder: str) -> None:
    own, params, made = rounds(folder)
    want = peer(folder)
    for (proposal, _), best in zip(made, want["best"], strict=True):
        assert proposal.tokens[0].tolist() == best[1:].tolist()
    logits = jax.jit(own.scores)(params, made[-1][1][0])
    assert relative_rms(logits, want["logits"]) <= TOLERANCE


def test_the_selector_chooses_as_the_trainers_does() -> None:
    _, _, made = rounds("dflash/dflash2")
    want = peer("dflash/dflash2")
    for index, (proposal, _) in enumerate(made):
        assert proposal.tokens[0].tolist() == want["drafts"][index].tolist()
        assert relative_rms(np.sort(proposal.logq[0]), np.sort(want["scores"][index])) <= TOLERANCE


@folders(SPARKS)
def test_the_markov_head_and_confidence_equal_the_trainers(folder: str) -> None:
    own, params, made = rounds(folder)
    want = peer(folder)
    for index, (proposal, _) in enumerate(made):
        assert proposal.tokens[0].tolist() == want["drafts"][index].tolist()
        assert relative_rms(proposal.logq[0], want["draft_logits"][index]) <= TOLERANCE
        assert relative_rms(proposal.confidence[0], want["confidence"][index]) <= TOLERANCE
    logits = jax.jit(own.scores)(params, made[-1][1][0])
    assert relative_rms(logits, want["base_logits"]) <= TOLERANCE
