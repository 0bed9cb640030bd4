"""Plain decoder-only transformers behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.layers.rope import rope_frequencies
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.modules import DenseTrunk
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import TrunkTarget
from specjax.state import KVCache


@dataclass(frozen=True)
class DenseTarget(TrunkTarget):
    """Qwen3 or Llama as a target of the decoding loop."""

    config: DenseConfig
    trunk_type = DenseTrunk

    def init_state(self, kind: None, room: Room) -> KVCache:
        """An empty cache, as that of every layer."""
        c = self.config
        return room.cache(c.num_kv_heads, c.head_width, rope_frequencies(c.rope_theta, c.head_width))
