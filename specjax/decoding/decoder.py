"""What a decoding program is made of: a static description and the pytree that its loop carries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax.decoding.acceptance import RULES, Rule, Synthetic, draws_drafts
from specjax.decoding.grammar import Constraint, GrammarRows, GrammarTables
from specjax.decoding.settings import Room, RowSettings, Settings
from specjax.models.protocol import Drafter, FeatureRequest, Target
from specjax.state import KVTypes, RollbackStrategy, SequenceState

LONGEST_CHUNK = 256
"""The most tokens that prefill feeds at once, but for `runtime.pieces.LARGE_PIECE`; states are made for it."""

MAX_DRAFTS = 15
"""The most drafts of a round: beyond 16 rows verification is no longer bound by reading the weights once."""


@dataclass(frozen=True)
class Decoder:
    """Everything static about a decoding program; what each row wants is data, see `specjax.decoding.settings`.

    Attributes:
        target: the model whose output must not change.
        drafter: what proposes tokens; must be given when `max_drafts` > 0.
        rule: how drafts are accepted, see `specjax.decoding.acceptance`; in greedy rows they are all one.
        max_drafts: K, the most drafts that a row can have; with 0 there is no drafting in the program. The state of a
            decoder serves the same decoder with a smaller K too: `at_most`.
        rollback: strategy for recurrent state.
        kv_types: types of all KV caches, the drafter's included.
        margins: also record by how much the largest logit led the second one where each emitted token was chosen.
        logprobs: also record the log-probability of each emitted token, and so many of the most probable tokens with
            theirs; None records nothing.
        probabilities: also record how probable drafts were, see `specjax.decoding.probabilities`.

    Raises:
        ValueError: the rule is unknown or has too few probabilities, or drafts are asked for without a drafter, or more
            than the drafter or a round can take.
    """

    target: Target
    drafter: Drafter | None
    rule: Rule | Synthetic = "rejection"
    max_drafts: int = 3
    rollback: RollbackStrategy = "replay"
    kv_types: KVTypes = KVTypes()
    margins: bool = False
    logprobs: int | None = None
    probabilities: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.rule, Synthetic):
            if len(self.rule.probabilities) < self.max_drafts:
                raise ValueError(
                    f"{self.max_drafts} draft tokens are asked for, but there are {len(self.rule.probabilities)}"
                    " probabilities of accepting them; give one for each"
                )
        elif self.rule not in (*RULES, "greedy", "each"):
            raise ValueError(f"rule is {self.rule!r}; known are {', '.join(map(repr, (*RULES, 'greedy', 'each')))}")
        if self.max_drafts < 0:
            raise ValueError(f"max_drafts is {self.max_drafts}; give 0 for plain decoding, or the most drafts")
        if self.max_drafts > 0 and self.drafter is None:
            raise ValueError(f"{self.max_drafts} draft tokens are asked for, but there is no drafter; use 0")
        if self.max_drafts > MAX_DRAFTS:
            raise ValueError(
                f"{self.max_drafts} draft tokens are asked for; a round verifies at most {MAX_DRAFTS + 1} tokens at"
                f" once: draft at most {MAX_DRAFTS}"
            )
        limit = None if self.drafter is None else self.drafter.max_drafts
        if limit is not None and self.max_drafts > limit:
            raise ValueError(f"{self.max_drafts} draft tokens are asked for; this drafter makes at most {limit}")
        if self.logprobs is not None and not 0 <= self.logprobs <= self.target.vocab_size:
            raise ValueError(
                f"logprobs is {self.logprobs}; give the number of most probable tokens to record, from 0 to the"
                f" {self.target.vocab_size} of the vocabulary, or None"
            )

    def settings(self, rows: Sequence[Settings], *, room: Room | None = None) -> RowSettings:
        """What rows want, as arrays; see `RowSettings.of`.

        Raises:
            ValueError: a row wants more drafts than this program makes, or to draw where the rule is "greedy", or its
                settings would bias rejection sampling.
        """
        for row in rows:
            self.check(row)
        return RowSettings.of(rows, room=room)

    def constraint(self, rows: Sequence[Settings]) -> Constraint | None:
        """The grammars of rows and where they begin; None if no row has one."""
        grammars = list(dict.fromkeys(row.grammar for row in rows if row.grammar is not None))
        if not grammars:
            return None
        numbers = [0 if row.grammar is None else 1 + grammars.index(row.grammar) for row in rows]
        masks = jnp.asarray([row.draft.masked for row in rows])
        own = GrammarRows(jnp.asarray(numbers, jnp.int32), jnp.zeros((len(rows),), jnp.int32), masks)
        return Constraint(GrammarTables.of(grammars, self.target.vocab_size), own)

    def check(self, row: Settings) -> None:
        """Raise ValueError as `settings` does."""
        if row.draft.n_max > self.max_drafts:
            raise ValueError(
                f"{row.draft.n_max} draft tokens are asked for; this program makes at most {self.max_drafts}"
            )
        if self.rule == "greedy" and not row.sampler.greedy:
            raise ValueError(
                f"temperature is {row.sampler.temperature}, but this program draws nothing; use one of the rules"
                f" {', '.join(map(repr, RULES))}"
            )
        if row.grammar is not None and len(row.grammar.classes) != self.target.vocab_size:
            raise ValueError(
                f"the grammar is made for a vocabulary of {len(row.grammar.classes)} tokens, and the target has"
                f" {self.target.vocab_size}; make it for this model"
            )
        if row.leaning.bias and (highest := max(token for token, _ in row.leaning.bias)) >= self.target.vocab_size:
            raise ValueError(
                f"logit_bias names token {highest}, and the target has {self.target.vocab_size}; give ids below that"
            )
        rule = row.rule if self.rule == "each" else self.rule
        row.draft.check_lossless(drawn=draws_drafts(rule) and not row.sampler.greedy)

    @property
    def drafts(self) -> bool:
        """Whether rounds draft at all."""
        return self.max_drafts > 0

    def at_most(self, max_drafts: int) -> Decoder:
        """The decoder with rounds of at most so many drafts; `decode_chunk` goes on with it from states of this one."""
        return replace(self, max_drafts=max_drafts)

    def shard(self, parts: int) -> Decoder:
        """The decoder of one of so many parts of its models, see `Target.shard`."""
        if parts == 1:
            return self
        drafter = None if self.drafter is None else self.drafter.shard(parts)
        return replace(self, target=self.target.shard(parts), drafter=drafter)

    @property
    def rows(self) -> int:
        """R, tokens of a verification window."""
        return self.max_drafts + 1

    @property
    def request(self) -> FeatureRequest:
        """What the drafter reads of the target."""
        return self.drafter.request if self.drafter else FeatureRequest()

    # One program is compiled sooner than one for each shape.
    @partial(jax.jit, static_argnums=(0, 1, 2), static_argnames="chunk")
    def init_state(self, batch: int, capacity: int, *, chunk: int = LONGEST_CHUNK) -> SequenceState:
        """The state of `batch` sequences before their first token, with room for `capacity` tokens each.

        `chunk` is the most tokens that `extend` will feed at once.
        """
        layers = self.target.init_layers(
            batch, capacity, rows=self.rows, chunk=chunk, rollback=self.rollback, kv_types=self.kv_types
        )
        drafter = None
        if self.drafter:
            drafter = self.drafter.init_state(batch, capacity, rows=self.rows, chunk=chunk, kv_types=self.kv_types)
        return SequenceState(layers, drafter, jnp.zeros((batch,), jnp.int32))


def bytes_per_token(decoder: Decoder) -> int:
    """Bytes that each further token of a sequence takes in the state, the drafter's included, once rings are full."""
    context = decoder.target.context_length

    def size(capacity: int) -> int:
        state = jax.eval_shape(partial(decoder.init_state, 1, capacity))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))

    return (size(2 * context) - size(context)) // context


@struct.dataclass
class DecodeState:
    """What the loop carries: B sequences and where each of them stands. The first axis of every array is the batch,
    but for the tables of grammars.

    Attributes:
        sequences: the committed state.
        pending: the last chosen token per row, emitted but not fed.
        budget: tokens that the row may still emit; a row with 0 is finished.
        streak, skip: see `specjax.decoding.draft_control`.
        sequence: the number of the row's random stream. It does not depend on the row or the batch.
        settings: what each row wants.
        dropped: how many tokens of the row's text were dropped from the state, see `specjax.decoding.shift`.
        constraint: the grammars of rows and where they stand; None if no row has one.
        counts: how often each row has emitted each token; None if no row has a bias or penalties.
    """

    sequences: SequenceState
    pending: Int[Array, "B"]
    budget: Int[Array, "B"]
    streak: Int[Array, "B"]
    skip: Bool[Array, "B"]
    sequence: Int[Array, "B"]
    settings: RowSettings
    dropped: Int[Array, "B"]
    constraint: Constraint | None = None
    counts: Int[Array, "B Va"] | None = None

    @property
    def position(self) -> Int[Array, "B"]:
        """The position of the pending token in the whole text. Random draws are keyed by it, so no draw is used
        twice.
        """
        return self.sequences.length + self.dropped

    @property
    def active(self) -> Bool[Array, "B"]:
        """Whether each row still decodes: it does while it has a budget."""
        return self.budget > 0
