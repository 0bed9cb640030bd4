"""The Gemma 4 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.models.gemma4.config import Gemma4Config
from specjax.models.gemma4.modules import Gemma4Trunk
from specjax.models.parts.trunk import TrunkTarget
from specjax.state import KVCache, KVTypes, RollbackStrategy


@dataclass(frozen=True)
class Gemma4Target(TrunkTarget):
    """See `specjax.models.protocol.Target`. `SequenceState.layers` has the caches of the layers that write one."""

    config: Gemma4Config

    @property
    def trunk(self) -> Gemma4Trunk:
        return Gemma4Trunk(self.config)

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
        """Rings for sliding layers and `capacity` slots for full ones, in `kv_types`."""
        del rollback

        def init(index: int) -> KVCache:
            kind = self.config.attention(self.config.layer_types[index])
            settings = (batch, capacity, kind.num_kv_heads, kind.head_width, kv_types, kind.frequencies())
            if kind.window is None:
                return KVCache.zeros(*settings)
            return KVCache.ring(*settings, window=kind.window, longest_call=max(rows, chunk))

        return tuple(init(index) for index in range(self.config.num_caches))
