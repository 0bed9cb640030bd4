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

    def __post_init__(self) -> None:
        if self.size < 1 or self.n_key_heads % self.size:
            raise ValueError(f"config.key_heads is {self.size}; accepted: divisors of Hk = {self.n_key_heads}")

    @property
    def count(self) -> int:
        """The number of blocks of key heads."""
        return self.n_key_heads // self.size

    def split(self, x: Array) -> Array:
        """[B, Hv, ...] as [B, Hv // Hk, Hk, ...] (tiled) or [B, Hk, Hv // Hk, ...] (grouped)."""
        return x.reshape(x.shape[0], *self._ordered(self.repeats, self.n_key_heads), *x.shape[2:])

    def at(self, repeat: Any, key_head: Any) -> tuple[Any, Any]:
        """Where a block of split value heads has the value head number `repeat` of its key head."""
        return self._ordered(repeat, key_head)

    def of_values(self, last: tuple[int | None, ...], place: Callable[..., tuple[Any, ...]], **options: Any) -> Any:
        """BlockSpec of split value heads.

        `last` are the block's sizes on the axes after the heads. `place` gives row and block of heads of a grid step,
        and then, if it is not the first, the block on the first of the other axes.
        """

        def index(*step: Any) -> tuple[Any, ...]:
            row, block, *others = place(*step)
            return (row, *self._ordered(0, block), *_filled(others, len(last)))

        return pl.BlockSpec((None, *self._ordered(self.repeats, self.size), *last), index, **options)

    def of_keys(self, last: tuple[int | None, ...], place: Callable[..., tuple[Any, ...]]) -> Any:
        """BlockSpec of key heads, likewise."""

        def index(*step: Any) -> tuple[Any, ...]:
            row, block, *others = place(*step)
            return (row, block, *_filled(others, len(last)))

        return pl.BlockSpec((None, self.size, *last), index)

    def _ordered(self, repeat: Any, key_head: Any) -> tuple[Any, Any]:
        return (repeat, key_head) if self.head_map == "tiled" else (key_head, repeat)


def _filled(indices: list[Any], length: int) -> tuple[Any, ...]:
    return (*indices, *[0] * (length - len(indices)))
