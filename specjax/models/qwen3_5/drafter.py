"""The MTP head of Qwen3.5: one block, which goes on from its own hidden states."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.models.parts.head import MTPBlock, Own
from specjax.models.parts.mtp import RepeatedHead
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.modules import AttentionLayer
from specjax.models.qwen3_5.target import Qwen35Target, init_cache
from specjax.state import KVCache, KVTypes


@dataclass(frozen=True)
class Qwen35MTP(RepeatedHead):
    """See `RepeatedHead`. Both hidden states, the target's and the block's own, are those after the norm."""

    config: Qwen35Config

    @property
    def target(self) -> Qwen35Target:
        """The target of the same config."""
        return Qwen35Target(self.config)

    @property
    def block(self) -> MTPBlock:
        """A full-attention layer as those of the trunk."""
        c = self.config
        own = Own(embedding=c.mtp_own_embedding, output=c.mtp_own_output, norm=c.mtp_own_norm)
        return MTPBlock(c, AttentionLayer(c), own)

    def init_cache(self, batch: int, capacity: int, kv_types: KVTypes) -> KVCache:
        """As that of the trunk's attention layers."""
        return init_cache(self.config, batch, capacity, kv_types)
