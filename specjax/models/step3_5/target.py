"""The Step-3.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.layers.rope import rope_frequencies
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import TrunkTarget
from specjax.models.step3_5.config import SLIDING_ATTENTION, LayerConfig, Step35Config
from specjax.models.step3_5.modules import Step35Trunk
from specjax.state import KVCache


@dataclass(frozen=True)
class Step35Target(TrunkTarget):
    """See `specjax.models.protocol.Target`. The final hidden feature is that before the final norm."""

    config: Step35Config
    trunk_type = Step35Trunk

    def init_state(self, kind: LayerConfig, room: Room) -> KVCache:
        """An empty cache: a ring if the layer is a sliding one."""
        attention = self.config.attention(kind)
        frequencies = rope_frequencies(attention.rope_theta, attention.rope_width)
        window = self.config.window if kind.attention == SLIDING_ATTENTION else None
        return room.cache(attention.num_kv_heads, self.config.head_width, frequencies, window)
