"""The MTP head of Qwen3.5 behind the drafter protocol: one block, which goes on from its own hidden states.

How it is kept up with the target is told in `specjax.models.mtp`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.rope import rope_frequencies
from specjax.models.apply import apply
from specjax.models.chain import draft_chain
from specjax.models.mtp import MTPState, MTPWindow
from specjax.models.protocol import Choice, ChooseDraft, FeatureRequest, Features, KeepGoing, Params, Proposal
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.modules import MTPBlock, Trunk
from specjax.models.trunk import shift_caches
from specjax.state import KVCache, KVTypes, SequenceState, Shift

_Part = tuple[nn.Module, Any]
"""A module and its parameters."""


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

    @property
    def cannot_shift(self) -> str | None:
        """Nothing is in the way: it has a cache only. The family's targets cannot."""
        return None

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> MTPState:
        """An empty cache, with the zero row before the first token waiting."""
        del chunk
        c = self.config
        kv = KVCache.zeros(batch, capacity, c.num_kv_heads, c.head_width, kv_types)
        return MTPState.start(kv, batch, rows, c.width)

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
        out, kv = apply(*block, embedded, hidden, positions, valid, kv)
        return apply(*(block if self.config.mtp_own_norm else trunk), out, method="final_norm"), kv

    def logits(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of the head's normed hidden rows."""
        if self.config.mtp_own_output:
            return apply(MTPBlock(self.config), params["mtp"], hidden, method="logits")
        return apply(Trunk(self.config), params["target"], hidden, method="logits")

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
        pairs = state.pairs(tokens, hidden[:, :-1], n_valid, length)
        _, kv = self.run(params, pairs.tokens, pairs.hidden, pairs.positions, pairs.valid, state.kv)
        return state.fed(kv, hidden, n_valid)

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
        pairs = own.pairs(pending[:, None], own.hidden[:, :0], jnp.ones_like(pending), length)
        fed, kv = self.run(params, pairs.tokens, pairs.hidden, pairs.positions, pairs.valid, own.kv)
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

    def shift(self, params: Params, state: MTPState, shift: Shift) -> MTPState:
        """Move the cache; the rows that wait stand where they stand from the end."""
        del params
        frequencies = rope_frequencies(self.config.rope_theta, self.config.rope_width)
        return replace(state, kv=shift_caches((state.kv,), (frequencies,), shift)[0])
