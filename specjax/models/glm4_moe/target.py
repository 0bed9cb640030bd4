"""The GLM-4.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.layers.rope import rope_frequencies
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.modules import Glm4MoeTrunk
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import TrunkTarget
from specjax.state import KVCache


@dataclass(frozen=True)
class Glm4MoeTarget(TrunkTarget):
    """GLM-4.5 as a target of the decoding loop."""

    config: Glm4MoeConfig
    trunk_type = Glm4MoeTrunk

    def init_state(self, kind: bool, room: Room) -> KVCache:
        """An empty cache, as that of every layer."""
        c = self.config
        return room.cache(c.num_kv_heads, c.head_width, rope_frequencies(c.rope_theta, c.rope_width))
