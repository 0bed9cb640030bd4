"""The MTP head of Qwen3.5 behind the drafter protocol.

Pairing: the head's row at position p holds (hidden state of position p - 1, token at position p) and predicts the
token at p + 1. The hidden state before the first token is zero, as in llama.cpp. The pair of the last committed
position is incomplete until the next token is known, so its hidden row waits in the state.

Catch-up: draft steps after the first run on the head's own hidden states, so the cache entries that they wrote are
approximations. `observe` lets the verified rows wait, and the next `propose` feeds them with the target's hidden
states, overwriting those entries; the last of these rows is the first draft step at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.models.apply import apply
from specjax.models.chain import draft_chain
from specjax.models.protocol import Choice, ChooseDraft, FeatureRequest, Features, Params, Proposal
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.modules import MTPBlock, Trunk
from specjax.state import KVCache, SequenceState

_Part = tuple[nn.Module, Any]
"""A module and its parameters."""


@struct.dataclass
class MTPState:
    """The head's own cache, and the verified rows it has not been fed yet.

    Waiting rows are aligned to the right: row i of `hidden` is the target's hidden state of position
    length - R + i, and row i of `tokens` is the token after it; the token after the last row is the pending one.

    Attributes:
        kv: one layer's cache.
        hidden: [B, R, D] float32.
        tokens: [B, R - 1].
        count: [B], how many rows wait; at least 1 (before the first token, the zero row).
    """

    kv: KVCache
    hidden: Float[Array, "B R D"]
    tokens: Int[Array, "B R-1"]
    count: Int[Array, "B"]


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


@dataclass(frozen=True)
class Qwen35MTP:
    """See `specjax.models.protocol.Drafter`. One block, run as many times as drafts are wanted."""

    config: Qwen35Config

    @property
    def request(self) -> FeatureRequest:
        """The hidden states after the target's final norm."""
        return FeatureRequest(final_hidden=True)

    @property
    def max_drafts(self) -> int | None:
        """The block can be chained without end."""
        return None

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, dtype: Any = jnp.float32) -> MTPState:
        """An empty cache, with the zero row before the first token waiting."""
        del chunk
        c = self.config
        return MTPState(
            kv=KVCache.zeros(batch, capacity, c.num_kv_heads, c.head_width, dtype),
            hidden=jnp.zeros((batch, rows, c.width), jnp.float32),
            tokens=jnp.zeros((batch, rows - 1), jnp.int32),
            count=jnp.ones((batch,), jnp.int32),
        )

    def run(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        kv: KVCache,
    ) -> tuple[Float[Array, "B T D"], KVCache]:
        """The head's normed hidden rows (what its output head and its own next step read), and the cache."""
        block: _Part = MTPBlock(self.config), params["mtp"]
        trunk: _Part = Trunk(self.config), params["target"]
        embedded = apply(*(block if self.config.mtp_own_embedding else trunk), tokens, method="embed_tokens")
        out, kv = apply(*block, embedded, hidden, jnp.maximum(positions, 0), valid, kv)
        return apply(*(block if self.config.mtp_own_norm else trunk), out, method="final_norm"), kv

    def logits(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of the head's normed hidden rows."""
        if self.config.mtp_own_output:
            return apply(MTPBlock(self.config), params["mtp"], hidden, method="logits")
        return apply(Trunk(self.config), params["target"], hidden, method="logits")

    def _feed(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        hidden: Float[Array, "B T-1 D"],
        n_valid: Int[Array, "B"],
        state: MTPState,
        length: Int[Array, "B"],
    ) -> tuple[Float[Array, "B R-1+T D"], KVCache]:
        """Feed the waiting rows and then T - 1 more, each paired with the token after it."""
        rows = state.hidden.shape[1]
        all_hidden = jnp.concatenate([state.hidden, hidden.astype(jnp.float32)], axis=1)
        all_tokens = jnp.concatenate([state.tokens, tokens], axis=1)
        index = jnp.arange(all_tokens.shape[1])
        positions = length[:, None] - rows + 1 + index
        valid = (index >= rows - state.count[:, None]) & (index < rows - 1 + n_valid[:, None])
        return self.run(params, all_tokens, all_hidden, positions, valid, state.kv)

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: MTPState,
        length: Int[Array, "B"],
    ) -> MTPState:
        """Feed every pair that the tokens complete; the hidden row of each row's last token waits."""
        assert features.final_hidden is not None
        hidden = features.final_hidden
        _, kv = self._feed(params, tokens, hidden[:, :-1], n_valid, state, length)
        last = jnp.take_along_axis(hidden, jnp.maximum(n_valid - 1, 0)[:, None, None], axis=1)
        idle = n_valid == 0
        waiting = state.hidden.at[:, -1:].set(
            jnp.where(idle[:, None, None], state.hidden[:, -1:], last.astype(jnp.float32))
        )
        return MTPState(kv, waiting, state.tokens, jnp.where(idle, state.count, 1))

    def propose(
        self,
        params: Params,
        pending: Int[Array, "B"],
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: Callable[[Float[Array, "B"]], Array],
    ) -> Proposal:
        """One pass over the waiting rows, which gives the first draft, and a row at a time for the others."""
        own, length = state.drafter, state.length
        no_hidden = own.hidden[:, :0]
        fed, kv = self._feed(params, pending[:, None], no_hidden, jnp.ones_like(pending), own, length)
        hidden = fed[:, -1]
        choice = choose(self.logits(params, hidden), length + 1)

        def step(index: Array, token: Int[Array, "B"], carry: tuple[Array, KVCache]) -> tuple[Choice, tuple]:
            hidden, kv = carry
            position = (length + index)[:, None]
            valid = jnp.ones_like(position, bool)
            out, kv = self.run(params, token[:, None], hidden[:, None], position, valid, kv)
            return choose(self.logits(params, out[:, 0]), length + index + 1), (out[:, 0], kv)

        drafts, (_, kv) = draft_chain(choice, step, (hidden, kv), num_drafts=num_drafts, keep_going=keep_going)
        return Proposal(
            tokens=drafts.tokens,
            logq=drafts.logq,
            confidence=drafts.confidence,
            hidden_norm=jnp.linalg.norm(own.hidden[:, -1], axis=-1),
            state=replace(own, kv=kv),
        )

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: MTPState) -> MTPWindow:
        """The verified rows will wait for the next round's first pass."""
        assert features.final_hidden is not None
        return MTPWindow(state, tokens, features.final_hidden)
