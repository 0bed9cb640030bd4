"""How large the states of layers are made."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from specjax.state import KVCache, KVTypes, RollbackStrategy


@dataclass(frozen=True)
class Room:
    """What states of layers are made for.

    Attributes:
        batch, capacity: how many sequences, and how many tokens of each.
        longest_call: the most tokens of a sequence that are fed at once.
        kv_types: of keys and values.
        rows, rollback: the most tokens that are verified at once, and how recurrent states forget some of them.
    """

    batch: int
    capacity: int
    longest_call: int = 1
    kv_types: KVTypes = KVTypes()
    rows: int = 1
    rollback: RollbackStrategy = "replay"

    def cache(
        self, heads: int, width: int, frequencies: Float[np.ndarray, "pairs"], window: int | None = None
    ) -> KVCache:
        """An empty cache; with a window a ring, which holds what a row can see of it."""
        settings = (self.batch, self.capacity, heads, width, self.kv_types, frequencies)
        if window is None:
            return KVCache.zeros(*settings)
        return KVCache.ring(*settings, window=window, longest_call=self.longest_call)
