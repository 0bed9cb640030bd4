"""The Step-3.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.layers.rope import rope_frequencies
from specjax.models.parts.trunk import TrunkTarget
from specjax.models.step3_5.config import SLIDING_ATTENTION, LayerConfig, Step35Config
from specjax.models.step3_5.modules import Step35Trunk
from specjax.state import KVCache, KVTypes, RollbackStrategy


def init_cache(
    config: Step35Config, layer: LayerConfig, batch: int, capacity: int, *, longest_call: int, kv_types: KVTypes
) -> KVCache:
    """The empty cache of a layer: a ring if it is a sliding one."""
    kind = config.attention(layer)
    frequencies = rope_frequencies(kind.rope_theta, kind.rope_width)
    settings = (batch, capacity, kind.num_kv_heads, config.head_width, kv_types, frequencies)
    if layer.attention == SLIDING_ATTENTION:
        return KVCache.ring(*settings, window=config.window, longest_call=longest_call)
    return KVCache.zeros(*settings)


@dataclass(frozen=True)
class Step35Target(TrunkTarget):
    """See `specjax.models.protocol.Target`. The final hidden feature is that before the final norm."""

    config: Step35Config

    @property
    def trunk(self) -> Step35Trunk:
        return Step35Trunk(self.config)

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
        """A cache of `capacity` slots for each full layer, a ring for each sliding one."""
        del rollback
        return tuple(
            init_cache(self.config, layer, batch, capacity, longest_call=max(rows, chunk), kv_types=kv_types)
            for layer in self.config.layers
        )
