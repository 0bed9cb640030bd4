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
from scripted import Run, run
from wants import alike

from specjax.decoding.acceptance import DrawingRule
from specjax.decoding.decoder import Decoder
from specjax.decoding.grammar import FORBIDDEN, Grammar
from specjax.decoding.leaning import Leaning
from specjax.decoding.sampling import warp
from specjax.decoding.settings import DraftConfig, SamplerConfig, Settings
from specjax.models.drafters.first_of import FirstOf
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import (
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
both_kinds = pytest.mark.parametrize(
    ("rule", "own"),
    [("rejection", False), pytest.param("block", False, marks=pytest.mark.slow), ("block", True)],
    ids=["rejection", "block", "block-of-rows"],
)
"""As the rule of the program, or as one that rows have of their own."""
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
        choices = []
        for step in range(num_drafts):
            choice = choose(params["drafter"][node], state.length + 1 + step)
            choices.append(choice)
            node = Context(node).after(choice.token[:, None])[:, -1]
        logq = None
        if choices[0].logq is not None:
            logq = jnp.stack([choice.logq for choice in choices], axis=1)
            logq = jnp.full_like(logq, -jnp.log(VOCAB)) if self.lie else logq
        return Proposal(
            tokens=jnp.stack([choice.token for choice in choices], axis=1),
            logq=logq,
            confidence=jnp.stack([choice.confidence for choice in choices], axis=1),
            state=state.drafter,
        )

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


@dataclass(frozen=True)
class Sometimes(BaseDrafter):
    """Looks up where the text says so; elsewhere its proposal is nonsense, which it does not want to be used."""

    def propose(self, params: Params, pending: jax.Array, state: SequenceState, **how: Any) -> Proposal:
        proposal = LOOKED_UP.propose(params, pending, state, **how)
        made = jnp.where(state.length % 2 == pending % 2, how["num_drafts"], 0)
        tokens = jnp.where(made[:, None] > 0, proposal.tokens, VOCAB + 7)
        return proposal._replace(tokens=tokens, made=made, confidence=jnp.where(made[:, None] > 0, 1, jnp.nan))


EVERYTHING = Decoder(TableTarget(), FirstOf((LOOKED_UP, Sometimes(), TableDrafter())), "each", 3)
"""One program for rows of any rule and of any of the drafters, with grammars and leanings."""
LOOKS_UP, SOMETIMES, DRAWS = range(3)
THREE = Grammar(
    np.array([[1, FORBIDDEN, 0], [2, 0, FORBIDDEN], [FORBIDDEN, 1, 2]], np.int32), np.arange(VOCAB, dtype=np.int32)
)
LEAN = Leaning(bias=((0, 0.7), (2, -0.4)), presence=0.6, frequency=0.9)


def sample_together(*wants: Settings) -> tuple[list[list[tuple[int, list[list[int]]]]], Run, np.ndarray]:
    """What rows with each of these settings say, by budget; the run, and which settings each of its rows has.

    The last rows are other ones. They have what else there is for rows, so that all batches are one program.
    """
    each = len(BUDGETS)
    other = Settings(SamplerConfig(0.8), DraftConfig(3), grammar=THREE, leaning=LEAN)
    own = np.arange(BATCH) // each % len(wants)
    own[-each:] = len(wants)
    rows = [(*wants, other)[index] for index in own]
    result = run(EVERYTHING, tables(), [[0]] * BATCH, np.resize(BUDGETS, BATCH), rows=rows)
    said = [
        [
            (budget, [result.tokens[row] for row in np.flatnonzero(own == index) if row % each == place])
            for place, budget in enumerate(BUDGETS)
        ]
        for index in range(len(wants))
    ]
    return said, result, own


@both_kinds
@pytest.mark.parametrize(
    "changes",
    [
        {},
        pytest.param({"draft": DraftConfig(n_max=1, skip_streak=2)}, marks=pytest.mark.slow),
        {"draft": DraftConfig(n_max=3, p_min=0.5), "stop_tokens": (2,)},
        {"sampler": SamplerConfig(temperature=1.3, top_k=2), "draft": DraftConfig(n_max=3, n_min=3)},
    ],
    ids=["k3", "k1-skips", "k3-stops-and-ends", "k3-top-k"],
)
def test_sequences_have_the_probabilities_of_the_target(changes: dict[str, Any], rule: DrawingRule, own: bool) -> None:
    sampler = changes.get("sampler", SamplerConfig(temperature=0.8))
    eos = changes.get("stop_tokens", (None,))[0]
    if own:
        wants = Settings(
            **({"sampler": sampler, "draft": DraftConfig(3), "seed": 11, "rule": rule, "drafters": (DRAWS,)} | changes)
        )
        (said,) = sample_together(wants)[0]
    else:
        said = by_budget(sample_sequences(TableDrafter(), rule, **changes))
    for budget, sequences in said:
        assert p_value(sequences, enumerate_sequences(sampler, budget, eos)) > 1e-3, budget


@both
def test_rows_of_several_drafters_have_the_probabilities_of_the_target(rule: DrawingRule) -> None:
    """Of those that draw and those that look up, in the same rounds, with a threshold of confidence.

    Some rows may be drafted for by both, some by either of them.
    """
    sampler, draft = SamplerConfig(temperature=0.8), DraftConfig(n_max=3, p_min=0.5)
    drafters = ((SOMETIMES, DRAWS), (SOMETIMES,), (DRAWS,))
    said, got, own = sample_together(*(Settings(sampler, draft, 11, rule=rule, drafters=each) for each in drafters))
    drafted = got.rounds.n_drafted > 0
    for index, (allowed, sequences) in enumerate(zip(drafters, said, strict=True)):
        assert set(got.rounds.source[drafted & (own == index)].tolist()) == set(allowed)
        for budget, tokens in sequences:
            odds = enumerate_sequences(sampler, budget, None)
            assert p_value(tokens, odds) > 1e-4, (allowed, budget)  # of twelve one is below 1e-3 now and then


@pytest.mark.slow
@both
def test_the_chi_square_test_sees_a_drafter_that_misreports_its_distribution(rule: DrawingRule) -> None:
    longest = by_budget(sample_sequences(TableDrafter(lie=True), rule))[-1]
    assert p_value(longest[1], enumerate_sequences(SamplerConfig(temperature=0.8), longest[0], None)) < 1e-6
