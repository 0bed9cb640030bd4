"""The GLM-4.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.layers.rope import rope_frequencies
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.modules import Glm4MoeTrunk
from specjax.models.parts.trunk import TrunkTarget
from specjax.state import KVCache, KVTypes, RollbackStrategy


def init_cache(config: Glm4MoeConfig, batch: int, capacity: int, kv_types: KVTypes) -> KVCache:
    """The empty cache of a layer."""
    frequencies = rope_frequencies(config.rope_theta, config.rope_width)
    return KVCache.zeros(batch, capacity, config.num_kv_heads, config.head_width, kv_types, frequencies)


@dataclass(frozen=True)
class Glm4MoeTarget(TrunkTarget):
    """GLM-4.5 as a target of the decoding loop."""

    config: Glm4MoeConfig

    @property
    def trunk(self) -> Glm4MoeTrunk:
        return Glm4MoeTrunk(self.config)

    def init_layers(
        self,
        batch: int,
        capacity: int,
        *,
        rows: int,
        chunk: int,
        rollback: RollbackStrategy,
        kv_types: KVTypes = KVTypes(),
    ) -> tuple[KVCache, ...]:
        """Caches of `capacity` slots in `kv_types`."""
        del rows, chunk, rollback
        return tuple(init_cache(self.config, batch, capacity, kv_types) for _ in range(self.config.num_layers))
