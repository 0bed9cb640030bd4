"""The MTP head of GLM-4.5: one sparse layer, which goes on from its own hidden states."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.modules import Layer
from specjax.models.glm4_moe.target import Glm4MoeTarget, init_cache
from specjax.models.parts.head import MTPBlock, Own
from specjax.models.parts.mtp import RepeatedHead
from specjax.state import KVCache, KVTypes


@dataclass(frozen=True)
class Glm4MoeMTP(RepeatedHead):
    """See `RepeatedHead`. Both hidden states, the target's and the block's own, are those after the norm."""

    config: Glm4MoeConfig

    @property
    def target(self) -> Glm4MoeTarget:
        """The target of the same config."""
        return Glm4MoeTarget(self.config)

    @property
    def block(self) -> MTPBlock:
        """A sparse layer as those of the trunk."""
        c = self.config
        own = Own(embedding=c.mtp_own_embedding, output=c.mtp_own_output, norm=c.mtp_own_norm)
        return MTPBlock(c, Layer(c, sparse=True), own)

    def init_cache(self, batch: int, capacity: int, kv_types: KVTypes) -> KVCache:
        """As those of the trunk's layers."""
        return init_cache(self.config, batch, capacity, kv_types)
