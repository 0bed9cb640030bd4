"""The n-gram drafter: what followed the last few tokens most often where they stood before in the row's own text.

It has no parameters. Text that copies from its prompt (edits, summaries, code) or repeats itself is drafted well and
for next to nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int

from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import ChooseDraft, Features, KeepGoing, Params, Proposal
from specjax.state import Content, KVTypes, Part, SequenceState, Shift

PLACES = 16
"""The most places whose continuations are counted."""


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

    def kept(self) -> NGramState:
        """How long the text is: the tokens before its end stay where they are."""
        return replace(jax.tree.map(lambda _: (), self), length=jnp.copy(self.length))

    def restored(self, now: NGramState) -> NGramState:
        """The text of now up to where this one ended."""
        return NGramState(jnp.copy(now.tokens), jnp.copy(self.length))

    def put(self, rows_state: NGramState, rows: Int[Array, "n"]) -> NGramState:
        """As many tokens as both have room for."""
        slots = min(self.tokens.shape[1], rows_state.tokens.shape[1])
        tokens = self.tokens.at[rows, :slots].set(rows_state.tokens[:, :slots], mode="drop")
        return NGramState(tokens, self.length.at[rows].set(rows_state.length, mode="drop"))

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """The text, as far as it goes, and how far that is."""
        own = int(self.length[row])
        return (
            Content(("tokens",), np.arange(own), np.asarray(self.tokens[row])[:own]),
            Content(("length",), np.array([length - 1]), np.array([own])),
        )

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

    The places looked up are those where most of the row's last tokens stood before, at most `longest` and at least
    `shortest`, and of these the latest `PLACES`. A draft is what follows at most of them, among equals at the latest.
    Places that disagree with it have no say in the drafts after it. The share of those that agree is the confidence.
    Where the end of the text is reached, the text goes on in the period that the match suggests.

    Attributes:
        longest, shortest: how many tokens a match has.

    Raises:
        ValueError: `shortest` is not between 1 and `longest`.

    Source: Saxena, "Prompt Lookup Decoding", 2023; Yang et al., "Inference with Reference", arXiv 2304.04487.
    """

    longest: int = 16
    shortest: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.shortest <= self.longest:
            raise ValueError(
                f"shortest is {self.shortest} and longest is {self.longest}; give 1 <= shortest <= longest"
            )

    @classmethod
    def before_others(cls) -> NGram:
        """One that goes before another drafter, and drafts only where it is very likely right."""
        return cls(shortest=4)

    def head_paths(self) -> tuple[str, ...]:
        return ()

    def shard(self, parts: int) -> NGram:
        """Itself: it reads tokens only, and every part has all of them."""
        del parts
        return self

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
        """Find the last tokens earlier in the text, and draft what followed. Rows without a match make no drafts."""
        del params, choose, keep_going
        text, last = state.drafter.append(pending[:, None], jnp.ones_like(pending)).tokens, state.length[:, None]
        matched = self._matched(text, last)
        best = jnp.max(matched, axis=1, keepdims=True)
        place = jnp.where(matched == best, jnp.arange(text.shape[1]), -1)
        # As floats, which hold places exactly: of integers top_k would sort them all.
        places = jax.lax.top_k(place.astype(jnp.float32), min(PLACES, text.shape[1]))[0].astype(jnp.int32)
        agree, places = places >= 0, jnp.maximum(places, 0)
        period = jnp.maximum(last - places, 1)[..., None]
        following = places[..., None] + 1 + jnp.arange(num_drafts) % period
        following = jnp.take_along_axis(text[:, None], following, axis=2)
        hit = best[:, 0] >= self.shortest
        tokens, shares = [], []
        for column in jnp.moveaxis(following, 2, 0):
            same = (column[:, :, None] == column[:, None, :]) & agree[:, None, :]
            votes = jnp.where(agree, jnp.sum(same, axis=2), 0)
            chosen = jnp.argmax(votes, axis=1, keepdims=True)  # of equals the first, which is the latest place
            token = jnp.take_along_axis(column, chosen, axis=1)
            shares.append(jnp.max(votes, axis=1) / jnp.sum(agree, axis=1))
            tokens.append(token[:, 0])
            agree &= column == token
        return Proposal(
            tokens=jnp.stack(tokens, axis=1),
            logq=None,
            confidence=jnp.where(hit[:, None], jnp.stack(shares, axis=1), 0).astype(jnp.float32),
            state=state.drafter,
            made=jnp.where(hit, num_drafts, 0),
        )

    def _matched(self, text: Int[Array, "B S"], last: Int[Array, "B 1"]) -> Int[Array, "B S"]:
        """How many tokens up to each place equal those up to the last one, at most `longest`; 0 from there on."""
        slots = text.shape[1]
        padded = jnp.pad(text, ((0, 0), (self.longest, 0)), constant_values=-1)  # before the start nothing is equal
        equal, matched = jnp.ones_like(text, dtype=bool), jnp.zeros_like(text)
        for start in range(self.longest, 0, -1):
            equal &= padded[:, start : start + slots] == jnp.take_along_axis(padded, last + start, axis=1)
            matched += equal
        return jnp.where(jnp.arange(slots) < last, matched, 0)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: NGramState) -> NGramWindow:
        """Join the verified tokens to the text. `commit` keeps the accepted ones."""
        del features
        return NGramWindow(state, tokens)
