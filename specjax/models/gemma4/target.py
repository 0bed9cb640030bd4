"""The Gemma 4 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.models.gemma4.config import Gemma4Config, LayerConfig
from specjax.models.gemma4.modules import Gemma4Trunk
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import TrunkTarget
from specjax.state import KVCache


@dataclass(frozen=True)
class Gemma4Target(TrunkTarget):
    """See `specjax.models.protocol.Target`. `SequenceState.layers` has the caches of the layers that write one."""

    config: Gemma4Config
    trunk_type = Gemma4Trunk

    @property
    def state_kinds(self) -> tuple[LayerConfig, ...]:
        """Kinds of the layers with keys and values of their own, which come first."""
        return self.config.layer_kinds[: self.config.num_caches]

    def init_state(self, kind: LayerConfig, room: Room) -> KVCache:
        """An empty cache: a ring if the layer is a sliding one."""
        c = kind.attention
        return room.cache(c.num_kv_heads, c.head_width, c.frequencies(), c.window)
