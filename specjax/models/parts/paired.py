"""Drafters that are fed pairs of a token and what the target made of the token before it.

Pairing: a row at position p holds (hidden state of position p - 1, token at position p) and predicts the token at
p + 1. The pair of the last committed position is incomplete until the next token is known, so its hidden row waits in
the state.

Catch-up: what a drafter wrote into its cache while drafting was made from hidden states of its own, not of the target,
and some of it for tokens that were rejected. `observe` lets the verified rows wait, and the next `propose` feeds them
with the target's hidden states, overwriting those entries; the last of these rows is the first draft step at the same
time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.mesh.rows import anywhere
from specjax.models.parts.apply import in_device_memory
from specjax.models.parts.chain import draft_chain
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import Choice, ChooseDraft, Drafted, Features, KeepGoing, Params, Proposal
from specjax.state import Content, Part, SequenceState, Shift, contents_of_layers


class Pairs(NamedTuple):
    """Rows to be fed to a drafter; those that are not valid mean nothing."""

    tokens: Int[Array, "B T"]
    hidden: Float[Array, "B T D"]
    positions: Int[Array, "B T"]
    valid: Bool[Array, "B T"]


@struct.dataclass
class PairedState(Part):
    """The cache of a drafter or several caches, and the verified rows that have not been fed yet.

    Waiting rows are aligned to the right: row i of `hidden` is the target's hidden state of position
    length - R + i, and row i of `tokens` is the token after it; the token after the last row is the pending one.

    Attributes:
        kv: a cache, or a tuple of them.
        hidden: [B, R, D] float32.
        tokens: [B, R - 1].
        count: [B], how many rows wait; 0 only before the first token.
    """

    kv: Any
    hidden: Float[Array, "B R D"]
    tokens: Int[Array, "B R-1"]
    count: Int[Array, "B"]

    @property
    def cannot_shift(self) -> None:
        """Nothing is in the way: the rows that wait stand where they stand from the end."""
        return None

    def shift(self, shift: Shift) -> PairedState:
        """Drop the tokens from the caches. The waiting rows are newer, and stay."""
        return replace(self, kv=jax.tree.map(lambda cache: cache.shift(shift), self.kv, is_leaf=self._is_inner))

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """The caches up to the last entry that is not written anew, and what waits to be fed."""
        count, rows = int(self.count[row]), self.hidden.shape[1]
        waiting = np.arange(length - count, length)
        hidden, tokens = np.asarray(self.hidden[row])[rows - count :], np.asarray(self.tokens[row])[rows - count :]
        return (
            *contents_of_layers(self.kv, row, length - count),
            Content(("waiting hidden states",), waiting, hidden),
            Content(("waiting tokens",), waiting[1:], tokens[: max(count - 1, 0)]),
        )

    @classmethod
    def start(cls, kv: Any, batch: int, rows: int, width: int, *, zero_row: bool) -> PairedState:
        """With empty caches; `zero_row` pairs the first token with zeros, else it is in no pair."""
        return cls(
            kv=kv,
            hidden=jnp.zeros((batch, rows, width), jnp.float32),
            tokens=jnp.zeros((batch, rows - 1), jnp.int32),
            count=jnp.full((batch,), int(zero_row), jnp.int32),
        )

    def latest(self, rows: int) -> PairedState:
        """With room for fewer waiting rows, of which no more may wait."""
        return replace(self, hidden=self.hidden[:, -rows:], tokens=self.tokens[:, self.tokens.shape[1] - rows + 1 :])

    def pairs(
        self,
        tokens: Int[Array, "B T"],
        hidden: Float[Array, "B T-1 D"],
        n_valid: Int[Array, "B"],
        length: Int[Array, "B"],
    ) -> Pairs:
        """The waiting rows and then T - 1 more, each with the token after it: R - 1 + T rows.

        Args:
            tokens: the tokens at positions length, length + 1, ..., of which `n_valid` count.
            hidden: the target's hidden states of these positions, but for the last.
            n_valid, length: see there.
        """
        rows = self.hidden.shape[1]
        all_hidden = jnp.concatenate([self.hidden, hidden.astype(jnp.float32)], axis=1)
        all_tokens = jnp.concatenate([self.tokens, tokens], axis=1)
        index = jnp.arange(all_tokens.shape[1])
        positions = length[:, None] - rows + 1 + index
        valid = (index >= rows - self.count[:, None]) & (index < rows - 1 + n_valid[:, None])
        return Pairs(all_tokens, all_hidden, jnp.maximum(positions, 0), valid)

    def fed(self, kv: Any, hidden: Float[Array, "B T D"], n_valid: Int[Array, "B"]) -> PairedState:
        """After final tokens: every pair that they complete is in `kv`, and the last one's hidden row waits."""
        last = jnp.take_along_axis(hidden, jnp.maximum(n_valid - 1, 0)[:, None, None], axis=1)
        idle = n_valid == 0
        waiting = jnp.where(idle[:, None, None], self.hidden[:, -1:], last.astype(jnp.float32))
        return PairedState(
            kv=kv,
            hidden=self.hidden.at[:, -1:].set(waiting),
            tokens=self.tokens,
            count=jnp.where(idle, self.count, 1),
        )


@struct.dataclass
class PairedWindow:
    """A state whose waiting rows have been fed, and a verified window that will wait after `commit`."""

    state: PairedState
    tokens: Int[Array, "B T"]
    hidden: Float[Array, "B T D"]

    def commit(self, n: Int[Array, "B"]) -> PairedState:
        """Let the first n rows wait. A row with n = 0 keeps what waited before; feeding it again changes nothing."""
        rows = self.state.hidden.shape[1]
        first = n[:, None] - rows + jnp.arange(rows)  # window row that waits in row i; negative: none
        last = self.tokens.shape[1] - 1
        hidden = jnp.take_along_axis(self.hidden, jnp.clip(first, 0, last)[:, :, None], axis=1)
        tokens = jnp.take_along_axis(self.tokens, jnp.clip(first[:, :-1] + 1, 0, last), axis=1)
        idle = n == 0
        return PairedState(
            kv=self.state.kv,
            hidden=jnp.where(idle[:, None, None], self.state.hidden, hidden.astype(self.state.hidden.dtype)),
            tokens=jnp.where(idle[:, None], self.state.tokens, tokens),
            count=jnp.where(idle, self.state.count, n),
        )


class PairedDrafter(BaseDrafter):
    """A drafter whose state is a `PairedState`."""

    def rows_of(self, features: Features) -> Float[Array, "B T D"]:
        """What of the target's features is paired with tokens."""
        assert features.final_hidden is not None
        return features.final_hidden

    def feed(self, params: Params, pairs: Pairs, kv: Any) -> Any:
        """The caches with these pairs in them."""
        raise TypeError(f"{type(self).__name__} does not say how it is fed")

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: PairedState,
        length: Int[Array, "B"],
    ) -> PairedState:
        """Feed every pair that the tokens complete; the hidden row of each row's last token waits."""
        hidden = self.rows_of(features)
        pairs = state.pairs(tokens, hidden[:, :-1], n_valid, length)
        return state.fed(self.feed(params, pairs, state.kv), hidden, n_valid)

    def narrowed(self, params: Params, state: PairedState, length: Int[Array, "B"], rows: int) -> PairedState:
        """Feed all waiting rows but the last, if too many wait anywhere."""
        if state.hidden.shape[1] <= rows:
            return state
        params = jax.tree.map(in_device_memory, params)  # XLA fails on host memory that a conditional reads

        def fed() -> PairedState:
            none = jnp.zeros_like(state.count)
            pairs = state.pairs(none[:, None], state.hidden[:, :0], none, length)
            return replace(state, kv=self.feed(params, pairs, state.kv), count=jnp.minimum(state.count, 1))

        return jax.lax.cond(anywhere(state.count > rows), fed, lambda: state)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: PairedState) -> PairedWindow:
        """The verified rows will wait for the next round's first pass."""
        return PairedWindow(state, tokens, self.rows_of(features))

    def hidden_norm(self, state: PairedState) -> Float[Array, "B"]:
        """The norm of the last row that waits."""
        return jnp.linalg.norm(state.hidden[:, -1], axis=-1)


class RepeatedDrafter(PairedDrafter):
    """Runs the same layers as many times as drafts are wanted, each time on its own last hidden row."""

    def enter(self, params: Params, rows: Float[Array, "B T rows"]) -> Float[Array, "B T D"]:
        """The hidden rows that `run` takes, of what waits in the state: the same."""
        del params
        return rows

    def run(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        kv: Any,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The hidden rows that the next step takes and `choose_next` reads, and the caches with the valid rows."""
        raise TypeError(f"{type(self).__name__} does not say how it is run")

    def choose_next(
        self,
        params: Params,
        hidden: Float[Array, "B D"],
        position: Int[Array, "B"],
        before: Drafted | None,
        choose: ChooseDraft,
    ) -> Choice:
        """A draft for each row, from the hidden row that `run` gave, after the draft `before`."""
        raise TypeError(f"{type(self).__name__} does not say how it chooses")

    def _run_pairs(self, params: Params, pairs: Pairs, kv: Any) -> tuple[Float[Array, "B T D"], Any]:
        return self.run(params, pairs.tokens, self.enter(params, pairs.hidden), pairs.positions, pairs.valid, kv)

    def feed(self, params: Params, pairs: Pairs, kv: Any) -> Any:
        """The caches with these pairs in them."""
        return self._run_pairs(params, pairs, kv)[1]

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
        """One pass over the waiting rows, which gives the first draft, and a row at a time for the others."""
        own, length = state.drafter, state.length
        pairs = own.latest(num_drafts + 1).pairs(pending[:, None], own.hidden[:, :0], jnp.ones_like(pending), length)
        fed, kv = self._run_pairs(params, pairs, own.kv)
        near = jax.tree.map(in_device_memory, params)

        def first(kv: Any) -> tuple[Choice, Array, Any]:
            return self.choose_next(near, fed[:, -1], length + 1, None, choose), fed[:, -1], kv

        def step(index: Array, before: Drafted, hidden: Array, kv: Any) -> tuple[Choice, Array, Any]:
            position = (length + index)[:, None]
            valid = jnp.ones_like(position, bool)
            out, kv = self.run(params, before.token[:, None], hidden[:, None], position, valid, kv)
            return self.choose_next(params, out[:, 0], length + index + 1, before, choose), out[:, 0], kv

        drafts, kv = draft_chain(first, step, kv, num_drafts=num_drafts, keep_going=keep_going)
        return Proposal(*drafts, state=replace(own, kv=kv))
