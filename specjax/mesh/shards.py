"""One program on all devices of a mesh.

A mesh has two axes. Along "model" the model is split: each device has some of the heads, hidden columns, experts and
tokens of the vocabulary, and runs a model of that size. Along "rows" the sequences are split. Both axes are explicit
(`jax.sharding.AxisType`), so that the types of a program's arguments say how they lie. So a program needs to be told
nothing: with arguments on a mesh it runs on shards, with others it is the program of one device.

Inside of shards every array is local, and kernels do not know of the mesh. What layers say to each other goes through
`total` and `gathered`. Both do nothing where the model is not split.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from pallas_kernels import using

ROWS, MODEL = "rows", "model"
"""The axes of a mesh: over sequences, and over parts of the model."""

EXACT = "exact"
"""A further axis, of length 1: programs on a mesh that has it compute the same numbers into however many parts the
model is split, see `exact`."""

REPLICATED: Any = PartitionSpec()
"""How arrays lie that every device has whole."""

Tree = TypeVar("Tree")


def lying(*axes: str | None) -> Any:
    """How an array lies, or every array of a tree: along each of its first axes an axis of the mesh, or none."""
    return PartitionSpec(*axes)


def mesh_of(tree: Any) -> AbstractMesh | None:
    """The mesh that arrays lie on, without its devices; None if they lie on one device, and on shards."""
    for leaf in jax.tree.leaves(tree):
        mesh = jax.typeof(leaf).sharding.mesh
        if MODEL in mesh.shape and MODEL not in mesh.manual_axes:
            return mesh
    return None


def devices_of(tree: Any) -> Mesh | None:
    """The mesh that arrays lie on, outside of programs; None if they lie on one device."""
    if mesh_of(tree) is None:
        return None
    shardings = (leaf.sharding for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array))
    meshes = (each.mesh for each in shardings if isinstance(each, NamedSharding))
    return next(mesh for mesh in meshes if isinstance(mesh, Mesh))


def on_shards(run: Callable[..., Tree], *args: Any, out: Callable[..., Any]) -> Tree:
    """What `run(parts, *args)` returns, run on every device of the mesh that the arguments lie on.

    Args:
        run: `parts` is how many parts the model is split into. Without a mesh it is 1, and `run` is just called.
        args: pytrees of arrays.
        out: (the partition specs of each argument) -> those of the result.
    """
    mesh = mesh_of(args)
    if mesh is None:
        return run(1, *args)
    specs = jax.tree.map(lambda x: jax.typeof(x).sharding.spec, args)
    split = jax.shard_map(
        partial(run, mesh.shape[MODEL]), mesh=mesh, in_specs=specs, out_specs=out(*specs), check_vma=False
    )
    # Measurements are of one device's sizes, and exact numbers must not go by them.
    with using(measured=EXACT not in mesh.shape):
        return split(*args)


def parts() -> int:
    """Into how many parts the model is split where this is called: 1 outside of shards."""
    return int(jax.sharding.get_abstract_mesh().shape.get(MODEL, 1))


def exact() -> bool:
    """Whether numbers must not depend on the number of parts: then nothing is added up across parts that one part would
    add up in another order.
    """
    return EXACT in jax.sharding.get_abstract_mesh().shape


def part_index() -> Int[Array, ""] | int:
    """Which of the parts this one is, from 0."""
    return lax.axis_index(MODEL) if parts() > 1 else 0


def total(x: Array) -> Array:
    """The sum over all parts."""
    return lax.psum(x, MODEL) if parts() > 1 else x


def largest(x: Array) -> Array:
    """The maximum over all parts. A NaN in one part is not seen in the others."""
    return lax.pmax(x, MODEL) if parts() > 1 else x


def gathered(x: Array, axis: int = -1) -> Array:
    """The parts one after the other along an axis, in order."""
    return lax.all_gather(x, MODEL, axis=axis % x.ndim, tiled=True) if parts() > 1 else x


def exchanged(x: Tree) -> Tree:
    """What parts have for each other: of arrays [parts, ...] each part sends entry i to part i, and gets as many."""
    return jax.tree.map(lambda each: lax.all_to_all(each, MODEL, 0, 0), x) if parts() > 1 else x


def traced_in_parts(mesh: Mesh | AbstractMesh, make: Callable[[], Tree]) -> Tree:
    """What `make` returns where it is traced on one of the shards; for shapes, since nothing is computed."""
    found: list[Tree] = []

    def body() -> Array:
        found.append(make())
        return jnp.zeros(())

    jax.eval_shape(jax.shard_map(body, mesh=mesh, in_specs=(), out_specs=REPLICATED, check_vma=False))
    return found[0]
