"""Sequences that are split over the rows of a mesh.

Each device has some of the B sequences of a state, in order. All rows of devices run the same loops and take the same
branches, so that what is asked of all sequences is asked across them: `anywhere` and `everywhere`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int, Shaped

from specjax.mesh.shards import ROWS, lying


def anywhere(x: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Whether it is true of any sequence of any device."""
    found = jnp.any(x)
    return lax.pmax(found.astype(jnp.int32), ROWS) > 0 if _rows() > 1 else found


def everywhere(x: Bool[Array, "..."]) -> Bool[Array, ""]:
    """Whether it is true of all sequences of all devices."""
    found = jnp.all(x)
    return lax.pmin(found.astype(jnp.int32), ROWS) > 0 if _rows() > 1 else found


def _rows() -> int:
    return int(jax.sharding.get_abstract_mesh().shape.get(ROWS, 1))


@dataclass(frozen=True)
class Sharing:
    """Which of a state's sequences a device has; for use inside of the program that was given the state.

    Attributes:
        split: whether each row of devices has its own; if not, all have all sequences.
    """

    split: bool

    @classmethod
    def of(cls, state: Any) -> Sharing:
        """How a state is shared, as the program sees it before it runs on shards. Its axes begin with the sequences."""
        sharding = jax.typeof(jax.tree.leaves(state)[0]).sharding
        return cls(ROWS in sharding.spec[:1] and ROWS not in sharding.mesh.manual_axes)

    def own(self, x: Shaped[Array, "B ..."], count: int) -> Shaped[Array, "b ..."]:
        """Of the entries of all sequences, those of this device, which has `count` sequences."""
        return lax.dynamic_slice_in_dim(x, lax.axis_index(ROWS) * count, count) if self.split else x

    def whole(self, x: Shaped[Array, "..."], axis: int = 0) -> Shaped[Array, "..."]:
        """The entries of all sequences, which lie along an axis."""
        return lax.all_gather(x, ROWS, axis=axis, tiled=True) if self.split else x

    def at(self, rows: Int[Array, "n"], count: int) -> Int[Array, "n"]:
        """Where sequences stand on this device, which has `count` of them; that number, if they are on others."""
        if not self.split:
            return rows
        own = rows - lax.axis_index(ROWS) * count
        return jnp.where((own >= 0) & (own < count), own, count)

    def taken(self, x: Shaped[Array, "b ..."], rows: Int[Array, "n"]) -> Shaped[Array, "n ..."]:
        """The entries of some sequences, wherever they are."""
        if not self.split:
            return x[rows]
        return self.found(jnp.take(x, self.at(rows, len(x)), axis=0, mode="clip"), rows, len(x))

    def found(self, x: Shaped[Array, "n ..."], rows: Int[Array, "n"], count: int) -> Shaped[Array, "n ..."]:
        """Entries for some sequences, from the devices that have these; each device has `count` sequences."""
        if not self.split:
            return x
        here = self.at(rows, count) < count
        own = jnp.where(here.reshape(-1, *(1,) * (x.ndim - 1)), x, jnp.zeros_like(x))
        return lax.psum(own, ROWS).astype(x.dtype)  # of bool the sum is an integer


def unsplit(specs: Any) -> Any:
    """How a state lies of which every row of devices has all sequences; `specs` say the same of a split one."""
    return jax.tree.map(lambda spec: lying(None, *spec[1:]), specs)
