"""The Qwen3.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specjax.layers.rope import rope_frequencies
from specjax.models.parts.trunk import TrunkTarget
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.models.qwen3_5.modules import Qwen35Trunk
from specjax.state import KVCache, KVTypes, RollbackStrategy, recurrent


def init_cache(config: Qwen35Config, batch: int, capacity: int, kv_types: KVTypes) -> KVCache:
    """The empty cache of a full-attention layer."""
    frequencies = rope_frequencies(config.rope_theta, config.rope_width)
    return KVCache.zeros(batch, capacity, config.num_kv_heads, config.head_width, kv_types, frequencies)


@dataclass(frozen=True)
class Qwen35Target(TrunkTarget):
    """Qwen3.5 as a target of the decoding loop."""

    config: Qwen35Config

    @property
    def trunk(self) -> Qwen35Trunk:
        return Qwen35Trunk(self.config)

    def init_layers(
        self,
        batch: int,
        capacity: int,
        *,
        rows: int,
        chunk: int,
        rollback: RollbackStrategy,
        kv_types: KVTypes = KVTypes(),
    ) -> tuple[Any, ...]:
        """KV caches of `capacity` slots in `dtype`, recurrent states in float32."""
        del chunk
        c = self.config

        def init(kind: str) -> Any:
            if kind == FULL_ATTENTION:
                return init_cache(c, batch, capacity, kv_types)
            return recurrent.zeros(
                rollback,
                batch=batch,
                rows=rows,
                value_heads=c.linear_value_heads,
                key_width=c.linear_key_width,
                value_width=c.linear_value_width,
                conv_channels=c.conv_channels,
                conv_width=c.conv_width,
                head_map=c.head_map,
            )

        return tuple(init(kind) for kind in c.layer_types)
