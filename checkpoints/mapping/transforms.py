"""Reversible changes between a tensor as a file stores it and the parameter that the model wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from checkpoints.source import Only

Shape = tuple[int, ...]
ArrayMap = Callable[[np.ndarray], np.ndarray]
Origin = Callable[[int, np.ndarray], Only]
"""(axis, which of its entries in the parameter) -> the entries in the file that these are, in the order of the
parameter."""


def _same(x: np.ndarray) -> np.ndarray:
    return x


@dataclass(frozen=True)
class Transform:
    """A bijection on arrays that keeps the shape, apart from axes of length 1 and from padding.

    Attributes:
        forward: stored -> parameter.
        backward: parameter -> stored.
        insert: where the stored tensor has axes of length 1 that the parameter lacks (positions in the stored shape).
        keeps_rows: whether rows along the last axis move as wholes, so that the maps also apply to packed rows.
        moves: whether values are only moved, so that they can stay in the type in which they are stored.
        stored: the shape in the file, if it does not follow from that of the parameter.
        origin: where entries of a parameter come from, so that a part of it can be read; None: the whole must be read.
    """

    forward: ArrayMap = _same
    backward: ArrayMap = _same
    insert: tuple[int, ...] = ()
    keeps_rows: bool = False
    moves: bool = True
    stored: Shape | None = None
    origin: Origin | None = None

    def then(self, other: Transform) -> Transform:
        """This transform on the way in, followed by `other`; the reverse on the way out. `insert` is this one's."""
        return Transform(
            lambda x: other.forward(self.forward(x)),
            lambda x: self.backward(other.backward(x)),
            self.insert,
            moves=self.moves and other.moves,
            stored=self.stored,
        )

    def stored_shape(self, shape: Shape) -> Shape:
        """The shape in the file of a parameter of `shape`."""
        if self.stored is not None:
            return self.stored
        stored = list(shape)
        for axis in self.insert:
            stored.insert(axis, 1)
        return tuple(stored)


IDENTITY = Transform(keeps_rows=True, origin=lambda axis, entries: {axis: entries})

PLUS_ONE = Transform(lambda w: w + w.dtype.type(1), lambda w: w - w.dtype.type(1), moves=False)
"""Norm weights that the file stores as w - 1."""

NEGATIVE_EXP = Transform(lambda x: -np.exp(x), lambda a: np.log(-a), moves=False)
"""`A_log` of a file, `a` = -exp(A_log) of the model."""


def padded_with_ones(used: int, stored: int) -> Transform:
    """A vector of `used` numbers that has ones after them in the file, up to `stored` numbers."""
    pad = (0, stored - used)
    return Transform(lambda x: x[:used], lambda x: np.pad(x, pad, constant_values=1), moves=False, stored=(stored,))


def reordered(order: np.ndarray, axis: int, *, keeps_rows: bool = False) -> Transform:
    """Another order along an axis, counted from the front: entry i of the parameter is entry order[i] of the file."""
    inverse = np.argsort(order)
    return Transform(
        lambda x: np.take(x, order, axis),
        lambda x: np.take(x, inverse, axis),
        keeps_rows=keeps_rows,
        origin=lambda along, entries: {axis: order[entries]} if along == axis else {axis: order, along: entries},
    )


def tile_heads(groups: int, per_group: int, width: int, axis: int, skip: int = 0) -> Transform:
    """Reorder heads along `axis` from grouped (head j of group j // per_group) to tiled (group j % groups).

    Args:
        groups, per_group: key heads, and value heads per key head.
        width: entries per head along the axis.
        axis: the axis that holds the heads, counted from the front.
        skip: leading entries of the axis that are not value heads and stay (queries and keys).
    """
    heads = np.arange(groups * per_group * width).reshape(groups, per_group, width)
    order = np.concatenate([np.arange(skip), skip + heads.swapaxes(0, 1).reshape(-1)])
    return reordered(order, axis)
