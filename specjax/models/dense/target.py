"""Plain decoder-only transformers behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.layers.rope import rope_frequencies
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.modules import DenseTrunk
from specjax.models.parts.trunk import TrunkTarget
from specjax.state import KVCache, KVTypes, RollbackStrategy


@dataclass(frozen=True)
class DenseTarget(TrunkTarget):
    """Qwen3 or Llama as a target of the decoding loop."""

    config: DenseConfig

    @property
    def trunk(self) -> DenseTrunk:
        return DenseTrunk(self.config)

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
        c = self.config
        frequencies = rope_frequencies(c.rope_theta, c.head_width)
        return tuple(
            KVCache.zeros(batch, capacity, c.num_kv_heads, c.head_width, kv_types, frequencies)
            for _ in range(c.num_layers)
        )
