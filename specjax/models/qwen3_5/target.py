"""The Qwen3.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specjax.layers.rope import rope_frequencies
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import TrunkTarget
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.models.qwen3_5.modules import Qwen35Trunk
from specjax.state import recurrent


@dataclass(frozen=True)
class Qwen35Target(TrunkTarget):
    """Qwen3.5 as a target of the decoding loop."""

    config: Qwen35Config
    trunk_type = Qwen35Trunk

    def init_state(self, kind: str, room: Room) -> Any:
        """An empty KV cache, or a recurrent state in float32."""
        c = self.config
        if kind == FULL_ATTENTION:
            return room.cache(c.num_kv_heads, c.head_width, rope_frequencies(c.rope_theta, c.rope_width))
        return recurrent.zeros(
            room.rollback,
            batch=room.batch,
            rows=room.rows,
            value_heads=c.linear_value_heads,
            key_width=c.linear_key_width,
            value_width=c.linear_value_width,
            conv_channels=c.conv_channels,
            conv_width=c.conv_width,
            head_map=c.head_map,
        )
