"""States of one sequence as one device has them, and as they lie where the parameters lie.

On a mesh a part has some of the heads and channels, and parts may have the same KV heads. Files have states whole, in
the order of the model, so that they do not depend on the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from checkpoints.mapping.reading import Given
from specjax.decoding.decoder import Decoder
from specjax.mesh.hosts import fetched, placed
from specjax.mesh.plan import Cut, cut_of
from specjax.mesh.shards import MODEL, devices_of
from specjax.models.protocol import Params

Tree = TypeVar("Tree")


@dataclass(frozen=True)
class Layout:
    """How the state of a sequence lies.

    Attributes:
        mesh: what it lies on; None for one device.
        cuts: how arrays are split over the parts of the model, by their paths; others are whole on every device.
    """

    mesh: Mesh | None
    cuts: Mapping[str, Cut]

    @classmethod
    def of(cls, decoder: Decoder, params: Params, slots: int) -> Layout:
        """The layout of states that are made for these parameters."""
        mesh = devices_of(params)
        if mesh is None or mesh.shape[MODEL] == 1:
            return cls(mesh, {})
        parts = mesh.shape[MODEL]
        whole = jax.eval_shape(partial(decoder.init_state, 1, slots))
        local = jax.eval_shape(partial(decoder.shard(parts).init_state, 1, slots))
        cuts: dict[str, Cut] = {}

        def compare(path: tuple, leaf: Any, own: Any, beside: tuple[int, ...]) -> None:
            if (cut := cut_of(leaf.shape, own.shape, parts, beside, shared=True)) is not None:
                cuts[jax.tree_util.keystr(path)] = cut

        jax.tree.map_with_path(compare, whole, local, whole.segments())
        return cls(mesh, cuts)

    def whole(self, state: Tree) -> Tree:
        """A state, or some parts of one, as one device has it."""
        return state if self.mesh is None else jax.tree.map_with_path(self._whole, state)

    def placed(self, state: Tree) -> Tree:
        """A state that is whole, or some parts of one, where the parameters lie."""
        return jax.tree.map(jnp.asarray, state) if self.mesh is None else jax.tree.map_with_path(self._placed, state)

    def _whole(self, path: tuple, array: jax.Array) -> np.ndarray:
        values, cut = fetched(array), self.cuts.get(jax.tree_util.keystr(path))
        return values if cut is None else cut.joined(np.split(values, len(cut.pieces), cut.axis), cut.axis)

    def _placed(self, path: tuple, values: np.ndarray) -> jax.Array:
        assert self.mesh is not None
        cut = self.cuts.get(jax.tree_util.keystr(path))
        axes: list[str | None] = [None] * values.ndim
        if cut is not None:
            axes[cut.axis] = MODEL
            values = np.concatenate([cut.part(Given(values), index) for index in range(len(cut.pieces))], cut.axis)
        return placed(values, NamedSharding(self.mesh, PartitionSpec(*axes)))
