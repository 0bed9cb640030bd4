"""The n-gram drafter: what followed the last few tokens the last time they stood in the row's own text.

It has no parameters. Text that copies from its prompt (edits, summaries, code) or repeats itself is drafted well and
for next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int

from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import ChooseDraft, Features, KeepGoing, Params, Proposal
from specjax.state import KVTypes, Part, SequenceState, Shift


@struct.dataclass
class NGramState(Part):
    """The committed text.

    Attributes:
        tokens: [B, S]; unspecified from `length` on.
        length: [B].
    """

    tokens: Int[Array, "B S"]
    length: Int[Array, "B"]

    @property
    def cannot_shift(self) -> None:
        """None: the state holds only tokens."""
        return None

    def shift(self, shift: Shift) -> NGramState:
        """Remove the dropped tokens from the text."""
        slots = jnp.broadcast_to(jnp.arange(self.tokens.shape[1]), self.tokens.shape)
        before = jnp.minimum(shift.sources(slots), self.tokens.shape[1] - 1)
        return NGramState(jnp.take_along_axis(self.tokens, before, axis=1), shift.left)

    def used(self, slots: int) -> NGramState:
        """The part with only its first `slots` tokens."""
        return replace(self, tokens=self.tokens[:, :slots])

    def put(self, rows_state: NGramState, rows: Int[Array, "n"]) -> NGramState:
        """As many tokens as both have room for."""
        slots = min(self.tokens.shape[1], rows_state.tokens.shape[1])
        tokens = self.tokens.at[rows, :slots].set(rows_state.tokens[:, :slots], mode="drop")
        return NGramState(tokens, self.length.at[rows].set(rows_state.length, mode="drop"))

    def append(self, tokens: Int[Array, "B T"], n: Int[Array, "B"]) -> NGramState:
        """The text with the first n tokens appended to it."""
        steps = jnp.arange(tokens.shape[1])
        slots = jnp.where(steps < n[:, None], self.length[:, None] + steps, self.tokens.shape[1])
        rows = jnp.arange(tokens.shape[0])[:, None]
        return NGramState(self.tokens.at[rows, slots].set(tokens, mode="drop"), self.length + n)


@struct.dataclass
class NGramWindow:
    """The committed text, and tokens of which a part will be committed."""

    state: NGramState
    tokens: Int[Array, "B T"]

    def commit(self, n: Int[Array, "B"]) -> NGramState:
        """The text with the first n tokens of the window."""
        return self.state.append(self.tokens, n)


@dataclass(frozen=True)
class NGram(BaseDrafter):
    """See `specjax.models.protocol.Drafter`. Drafts are a function of the text: nothing is drawn.

    The place looked up is where most of the row's last tokens stood before, at most `longest` and at least `shortest`;
    among equals the latest. A draft that reaches the end of the text goes on in the period that the match suggests.

    Attributes:
        longest, shortest: how many tokens a match has.

    Raises:
        ValueError: `shortest` is not between 1 and `longest`.

    Source: Saxena, "Prompt Lookup Decoding", 2023; Yang et al., "Inference with Reference", arXiv 2304.04487.
    """

    longest: int = 4
    shortest: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"shortest is {self.shortest} and longest is {self.longest}; give 1 <= shortest <= longest"
            )

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> NGramState:
        """The state of an empty text."""
        del rows, chunk, kv_types
        return NGramState(jnp.zeros((batch, capacity), jnp.int32), jnp.zeros((batch,), jnp.int32))

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: NGramState,
        length: Int[Array, "B"],
    ) -> NGramState:
        """Append the valid tokens of each row to its text."""
        del params, features, length
        return state.append(tokens, n_valid)

    def propose(
        self,
        params: Params,
        pending: Int[Array, "B"],
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        """Find the last tokens earlier in the text, and draft what followed. Rows without a match make no drafts. Other
        rows have confidence 1.
        """
        del params, choose, keep_going
        text, last = state.drafter.append(pending[:, None], jnp.ones_like(pending)).tokens, state.length[:, None]
        place = jnp.arange(text.shape[1])
        equal = jnp.ones_like(text, dtype=bool)
        matched = jnp.zeros_like(text)  # how many tokens up to each place equal those up to the end
        for back in range(self.longest):
            ending = jnp.take_along_axis(text, jnp.maximum(last - back, 0), axis=1)
            equal &= (jnp.roll(text, back, axis=1) == ending) & (place >= back)
            matched += equal
        matched = jnp.where(place < last, matched, 0)
        best = jnp.max(matched, axis=1, keepdims=True)
        found = jnp.max(jnp.where(matched == best, place, 0), axis=1, keepdims=True)
        period = last - found
        drafts = jnp.take_along_axis(text, found + 1 + jnp.arange(num_drafts) % jnp.maximum(period, 1), axis=1)
        hit = best[:, 0] >= self.shortest
        return Proposal(
            tokens=drafts,
            logq=None,
            confidence=jnp.broadcast_to(hit[:, None], drafts.shape).astype(jnp.float32),
            state=state.drafter,
            made=jnp.where(hit, num_drafts, 0),
        )

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: NGramState) -> NGramWindow:
        """Join the verified tokens to the text. `commit` keeps the accepted ones."""
        del features
        return NGramWindow(state, tokens)
