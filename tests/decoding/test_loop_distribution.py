"""Rejection sampling and block verification through the whole loop: sequences have exactly the target's probabilities.

The target is a table: the next token depends on the last two. Its sequences can be enumerated, and thousands of them
decode in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from own_drafter import documented
from scipy import stats
from scripted import run
from wants import alike

from specjax.decoding.acceptance import DrawingRule
from specjax.decoding.decoder import Decoder
from specjax.decoding.sampling import warp
from specjax.decoding.settings import DraftConfig, SamplerConfig
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import (
    Choice,
    ChooseDraft,
    Drafter,
    FeatureRequest,
    Features,
    KeepGoing,
    Params,
    Proposal,
    Rows,
    TargetOutput,
)
from specjax.state import KVTypes, Part, RollbackStrategy, SequenceState, SequenceWindow

VOCAB = 3
BATCH = 20000
BUDGETS = (1, 2, 3, 5)  # tokens that a row emits, by row
both = pytest.mark.parametrize("rule", ["rejection", "block"])
rejection_at_least = pytest.mark.parametrize("rule", ["rejection", pytest.param("block", marks=pytest.mark.slow)])
block_at_least = pytest.mark.parametrize("rule", [pytest.param("rejection", marks=pytest.mark.slow), "block"])


@struct.dataclass
class Context(Part):
    """The last two tokens as one number; all that this target remembers."""

    node: jax.Array

    def after(self, tokens: jax.Array) -> jax.Array:
        """The contexts after 0, 1, ... of the tokens [B, T]."""
        nodes = [self.node]
        for token in tokens.T:
            nodes.append((nodes[-1] * VOCAB + token) % VOCAB**2)
        return jnp.stack(nodes, axis=1)


@struct.dataclass
class ContextWindow:
    """The contexts after 0, 1, ... tokens of the window."""

    nodes: jax.Array

    def commit(self, n: jax.Array) -> Context:
        return Context(jnp.take_along_axis(self.nodes, n[:, None], axis=1)[:, 0])


@dataclass(frozen=True)
class TableTarget:
    """Logits of `params["target"]` [V * V, V] for the last two tokens."""

    vocab_size: int = VOCAB
    context_length: int = 64

    def shard(self, parts: int) -> TableTarget:
        assert parts == 1
        return self

    def init_layers(
        self, batch: int, capacity: int, *, rows: int, chunk: int, rollback: RollbackStrategy, kv_types: KVTypes
    ) -> tuple[Any, ...]:
        return (Context(jnp.zeros((batch,), jnp.int32)),)

    def extend(
        self,
        params: Params,
        tokens: jax.Array,
        n_valid: jax.Array,
        state: SequenceState,
        *,
        request: FeatureRequest,
        rows: Rows,
    ) -> tuple[TargetOutput, SequenceState]:
        output, window = self.verify(params, tokens[:, :1], n_valid, state, request=request)
        layers = tuple(layer.commit(n_valid) for layer in window.layers)
        return output, SequenceState(layers, state.drafter, state.length + n_valid)

    def verify(
        self,
        params: Params,
        tokens: jax.Array,
        n_valid: jax.Array,
        state: SequenceState,
        *,
        request: FeatureRequest,
    ) -> tuple[TargetOutput, SequenceWindow]:
        nodes = state.layers[0].after(tokens)
        output = TargetOutput(params["target"][nodes[:, 1:]], Features())
        return output, SequenceWindow((ContextWindow(nodes),), None, state.length)


@dataclass(frozen=True)
class TableDrafter(BaseDrafter):
    """Drafts from another table, `params["drafter"]`; `lie` reports a distribution it did not draw from."""

    lie: bool = False

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Context:
        return Context(jnp.zeros((batch,), jnp.int32))

    def extend(
        self,
        params: Params,
        tokens: jax.Array,
        features: Features,
        n_valid: jax.Array,
        state: Context,
        length: jax.Array,
    ) -> Context:
        return ContextWindow(state.after(tokens[:, :1])).commit(n_valid)

    def propose(
        self,
        params: Params,
        pending: jax.Array,
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        node = state.drafter.after(pending[:, None])[:, -1]

        def draft(node: jax.Array, step: jax.Array) -> tuple[jax.Array, Choice]:
            choice = choose(params["drafter"][node], state.length + 1 + step)
            return Context(node).after(choice.token[:, None])[:, -1], choice

        _, columns = jax.lax.scan(draft, node, jnp.arange(num_drafts))
        choices = jax.tree.map(lambda column: jnp.moveaxis(column, 0, 1), columns)
        lied = self.lie and choices.logq is not None
        logq = jnp.full_like(choices.logq, -jnp.log(VOCAB)) if lied else choices.logq
        return Proposal(tokens=choices.token, logq=logq, confidence=choices.confidence, state=state.drafter)

    def observe(self, tokens: jax.Array, features: Features, state: Context) -> ContextWindow:
        return ContextWindow(state.after(tokens))


LOOKED_UP = documented()["Bigram"]((0, 1, 2, 0, 2, 1))
"""The drafter that the documentation shows: its drafts are not drawn."""


@cache
def tables() -> Params:
    rng = np.random.default_rng(5)
    target = rng.normal(size=(VOCAB**2, VOCAB)).astype(np.float32)
    drafter = target + rng.normal(scale=1.2, size=target.shape).astype(np.float32)
    return {"target": jnp.asarray(target), "drafter": jnp.asarray(drafter), **LOOKED_UP.parameters(TableTarget())}


@cache
def shares(sampler: SamplerConfig) -> np.ndarray:
    """The distribution after each two tokens, by the table of logits."""
    table = np.exp(np.asarray(warp(tables()["target"], alike(len(tables()["target"]), sampler)), np.float64))
    return table / table.sum(axis=1, keepdims=True)


def enumerate_sequences(sampler: SamplerConfig, length: int, eos: int | None) -> dict[tuple[int, ...], float]:
    """The probability of every sequence after the prompt (0), up to a length or the end token."""
    table = shares(sampler)
    odds: dict[tuple[int, ...], float] = {}
    for tokens in product(range(VOCAB), repeat=length):
        node, p, emitted = 0, 1.0, []
        for token in tokens:
            p *= table[node, token]
            node = (node * VOCAB + token) % VOCAB**2
            emitted.append(token)
            if token == eos:
                break
        # Sequences that end early come up once for each way to continue them; all but one are skipped.
        if p and all(token == 0 for token in tokens[len(emitted) :]):
            odds[tuple(emitted)] = p
    assert abs(sum(odds.values()) - 1) < 1e-9
    return odds


def p_value(sequences: list[list[int]], odds: dict[tuple[int, ...], float]) -> float:
    """Of the chi-square test; sequences that the target cannot produce give 0."""
    counts = dict.fromkeys(odds, 0)
    for sequence in sequences:
        if tuple(sequence) not in counts:
            return 0.0
        counts[tuple(sequence)] += 1
    observed, expected = np.array(list(counts.values())), np.array(list(odds.values())) * len(sequences)
    order = np.argsort(expected)
    rare = order[np.cumsum(expected[order]) < 20]  # together one cell
    common = np.setdiff1d(order, rare)
    cells = [np.append(x[common], x[rare].sum()) if len(rare) else x for x in (observed, expected)]
    return float(stats.chisquare(*cells).pvalue) if len(cells[0]) > 1 else 1.0


def sample_sequences(drafter: Drafter, rule: DrawingRule, **changes: Any) -> list[list[int]]:
    wants = {"sampler": SamplerConfig(temperature=0.8), "draft": DraftConfig(n_max=3)} | changes
    decoder = Decoder(TableTarget(), drafter, rule, wants["draft"].n_max)
    return run(decoder, tables(), [[0]] * BATCH, np.resize(BUDGETS, BATCH), seed=11, **wants).tokens


def by_budget(sequences: list[list[int]]) -> list[tuple[int, list[list[int]]]]:
    return [(budget, sequences[row :: len(BUDGETS)]) for row, budget in enumerate(BUDGETS)]


@block_at_least
def test_drafts_that_are_looked_up_leave_the_probabilities_of_the_target(rule: DrawingRule) -> None:
    for budget, sequences in by_budget(sample_sequences(LOOKED_UP, rule)):
        odds = enumerate_sequences(SamplerConfig(temperature=0.8), budget, None)
        assert p_value(sequences, odds) > 1e-3, budget


differing = pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"draft": DraftConfig(n_max=1, skip_streak=2)}, marks=pytest.mark.slow),
        {"draft": DraftConfig(n_max=3, p_min=0.5), "stop_tokens": (2,)},
        {"sampler": SamplerConfig(temperature=1.3, top_k=2), "draft": DraftConfig(n_max=3, n_min=3)},
    ],
    ids=["k3", "k1-skips", "k3-stops-and-ends", "k3-top-k"],
)


def assert_probable(drawn: list[tuple[int, list[list[int]]]], changes: dict[str, Any]) -> None:
    """The texts of each budget have the probabilities of the target."""
    sampler = changes.get("sampler", SamplerConfig(temperature=0.8))
    eos = changes.get("stop_tokens", (None,))[0]
    for budget, sequences in drawn:
        assert p_value(sequences, enumerate_sequences(sampler, budget, eos)) > 1e-3, budget


@rejection_at_least
@differing
def test_sequences_have_the_probabilities_of_the_target(changes: dict[str, Any], rule: DrawingRule) -> None:
    """As the rule of the program. `test_loop_distribution_of_rows.py` has block verification as a rule of rows."""
    assert_probable(by_budget(sample_sequences(TableDrafter(), rule, **changes)), changes)


@pytest.mark.slow
@both
def test_the_chi_square_test_sees_a_drafter_that_misreports_its_distribution(rule: DrawingRule) -> None:
    longest = by_budget(sample_sequences(TableDrafter(lie=True), rule))[-1]
    assert p_value(longest[1], enumerate_sequences(SamplerConfig(temperature=0.8), longest[0], None)) < 1e-6
