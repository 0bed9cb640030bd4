"""What MTP heads have in common: verified rows wait in the state until the pass that feeds them.

Pairing: a head's row at position p holds (hidden state of position p - 1, token at position p) and predicts the token
at p + 1. The hidden state before the first token is zero, as in llama.cpp. The pair of the last committed position is
incomplete until the next token is known, so its hidden row waits in the state.

Catch-up: what a head wrote into its cache while drafting was made from hidden states of heads, not of the target, and
some of it for tokens that were rejected. `observe` lets the verified rows wait, and the next `propose` feeds them with
the target's hidden states, overwriting those entries; the last of these rows is the first draft step at the same time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.state import Part, Shift


class Pairs(NamedTuple):
    """Rows to be fed to a head; those that are not valid mean nothing."""

    tokens: Int[Array, "B T"]
    hidden: Float[Array, "B T D"]
    positions: Int[Array, "B T"]
    valid: Bool[Array, "B T"]


@struct.dataclass
class MTPState(Part):
    """The cache of a head or of several, and the verified rows that have not been fed yet.

    Waiting rows are aligned to the right: row i of `hidden` is the target's hidden state of position
    length - R + i, and row i of `tokens` is the token after it; the token after the last row is the pending one.

    Attributes:
        kv: a cache, or one per head.
        hidden: [B, R, D] float32.
        tokens: [B, R - 1].
        count: [B], how many rows wait; at least 1 (before the first token, the zero row).
    """

    kv: Any
    hidden: Float[Array, "B R D"]
    tokens: Int[Array, "B R-1"]
    count: Int[Array, "B"]

    @property
    def cannot_shift(self) -> None:
        """Nothing is in the way: the rows that wait stand where they stand from the end."""
        return None

    def shift(self, shift: Shift) -> MTPState:
        """Move the caches."""
        return replace(self, kv=jax.tree.map(lambda cache: cache.shift(shift), self.kv, is_leaf=self._is_inner))

    @classmethod
    def start(cls, kv: Any, batch: int, rows: int, width: int) -> MTPState:
        """With empty caches, and the zero row before the first token waiting."""
        return cls(
            kv=kv,
            hidden=jnp.zeros((batch, rows, width), jnp.float32),
            tokens=jnp.zeros((batch, rows - 1), jnp.int32),
            count=jnp.ones((batch,), jnp.int32),
        )

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

    def fed(self, kv: Any, hidden: Float[Array, "B T D"], n_valid: Int[Array, "B"]) -> MTPState:
        """After final tokens: every pair that they complete is in `kv`, and the last one's hidden row waits."""
        last = jnp.take_along_axis(hidden, jnp.maximum(n_valid - 1, 0)[:, None, None], axis=1)
        idle = n_valid == 0
        waiting = jnp.where(idle[:, None, None], self.hidden[:, -1:], last.astype(jnp.float32))
        return MTPState(
            kv=kv,
            hidden=self.hidden.at[:, -1:].set(waiting),
            tokens=self.tokens,
            count=jnp.where(idle, self.count, 1),
        )


@struct.dataclass
class MTPWindow:
    """A state whose waiting rows have been fed, and a verified window that will wait after `commit`."""

    state: MTPState
    tokens: Int[Array, "B T"]
    hidden: Float[Array, "B T D"]

    def commit(self, n: Int[Array, "B"]) -> MTPState:
        """Let the first n rows wait. A row with n = 0 keeps what waited before; feeding it again changes nothing."""
        rows = self.state.hidden.shape[1]
        first = n[:, None] - rows + jnp.arange(rows)  # window row that waits in row i; negative: none
        last = self.tokens.shape[1] - 1
        hidden = jnp.take_along_axis(self.hidden, jnp.clip(first, 0, last)[:, :, None], axis=1)
        tokens = jnp.take_along_axis(self.tokens, jnp.clip(first[:, :-1] + 1, 0, last), axis=1)
        idle = n == 0
        return MTPState(
            kv=self.state.kv,
            hidden=jnp.where(idle[:, None, None], self.state.hidden, hidden.astype(self.state.hidden.dtype)),
            tokens=jnp.where(idle[:, None], self.state.tokens, tokens),
            count=jnp.where(idle, self.state.count, n),
        )
