"""How the TPU kernels walk heads: a block of key heads at a time, with all value heads that use them.

So keys and queries are read once and repeated nowhere. Value heads are split on two axes, which moves no data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jax import Array
from jax.experimental import pallas as pl

from pallas_kernels.gated_delta.heads import HeadMap


@dataclass(frozen=True)
class HeadBlocks:
    """Key heads in blocks of `size`; the value heads of a key head are `repeats`."""

    n_key_heads: int
    repeats: int
    head_map: HeadMap
    size: int

    @property
    def count(self) -> int:
        """Blocks of key heads."""
        return self.n_key_heads // self.size

    def split(self, x: Array) -> Array:
        """[B, Hv, ...] as [B, Hv // Hk, Hk, ...] (tiled) or [B, Hk, Hv // Hk, ...] (grouped)."""
        return x.reshape(x.shape[0], *self._ordered(self.repeats, self.n_key_heads), *x.shape[2:])

    def at(self, repeat: Any, key_head: Any) -> tuple[Any, Any]:
        """Where a block of split value heads has the value head number `repeat` of its key head."""
        return self._ordered(repeat, key_head)

    def of_values(self, last: tuple[int, int], place: Callable[..., tuple[Any, Any]], **options: Any) -> pl.BlockSpec:
        """A block of split value heads with its last two axes whole; `place` gives row and block of a grid step."""

        def index(*step: Any) -> tuple[Any, ...]:
            row, block = place(*step)
            return (row, *self._ordered(0, block), 0, 0)

        return pl.BlockSpec((None, *self._ordered(self.repeats, self.size), *last), index, **options)

    def of_keys(self, last: tuple[int, int], place: Callable[..., tuple[Any, Any]]) -> pl.BlockSpec:
        """A block of key heads, likewise."""
        return pl.BlockSpec((None, self.size, *last), lambda *step: (*place(*step), 0, 0))

    def _ordered(self, repeat: Any, key_head: Any) -> tuple[Any, Any]:
        return (repeat, key_head) if self.head_map == "tiled" else (key_head, repeat)
