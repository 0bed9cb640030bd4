"""States before the first token. They lie where the parameters lie: on one device, or in parts on a mesh."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from specjax.decoding.decoder import LONGEST_CHUNK, Decoder, DecodeState
from specjax.decoding.grammar import Constraint
from specjax.decoding.leaning import NO_LEANING, LeaningRows, no_counts
from specjax.decoding.settings import NO_STOP, Room, RowSettings
from specjax.mesh.hosts import placed
from specjax.mesh.plan import AnyMesh
from specjax.mesh.shards import MODEL, REPLICATED, ROWS, devices_of, lying, mesh_of, on_shards
from specjax.models.protocol import Params
from specjax.state import SequenceState

_Tree = TypeVar("_Tree")


def new_sequences(
    decoder: Decoder, params: Params, batch: int, capacity: int, *, chunk: int = LONGEST_CHUNK
) -> SequenceState:
    """`Decoder.init_state`, where the parameters lie. Sequences are split over rows of a mesh if they divide."""
    mesh = devices_of(params)
    if mesh is None:
        return on_device_of(params, decoder.init_state(batch, capacity, chunk=chunk))
    return _in_parts(decoder, mesh, batch, capacity, chunk)


@partial(jax.jit, static_argnames=("decoder", "mesh", "batch", "capacity", "chunk"))
def _in_parts(decoder: Decoder, mesh: AnyMesh, batch: int, capacity: int, chunk: int) -> SequenceState:
    """Each device makes what it has of the state."""
    parts, over_rows = mesh.shape[MODEL], _over_rows(mesh, batch)
    local = batch // mesh.shape[ROWS] if over_rows else batch
    make = partial(decoder.shard(parts).init_state, local, capacity, chunk=chunk)
    specs = specs_of_sequences(decoder, parts, batch, capacity, over_rows)
    return jax.shard_map(make, mesh=mesh, in_specs=(), out_specs=specs, check_vma=False)()


def specs_of_sequences(
    decoder: Decoder, parts: int, batch: int, capacity: int, over_rows: str | None = None
) -> SequenceState:
    """How a state lies on a mesh: an axis that is shorter in a part of the model than in the whole is split.

    `over_rows` is the axis of the mesh that the sequences are split over, if they are.
    """

    def spec(whole: jax.ShapeDtypeStruct, part: jax.ShapeDtypeStruct) -> PartitionSpec:
        sizes = zip(whole.shape[1:], part.shape[1:], strict=True)
        return PartitionSpec(over_rows, *(None if size == of_part else MODEL for size, of_part in sizes))

    shapes = (jax.eval_shape(partial(each.init_state, batch, capacity)) for each in (decoder, decoder.shard(parts)))
    return jax.tree.map(spec, *shapes)


@partial(jax.jit, static_argnames="count")
def repeated(state: SequenceState, count: int) -> SequenceState:
    """The state of one sequence so many times; they lie as a state of so many sequences does."""
    mesh = mesh_of(state)
    over_rows = None if mesh is None else _over_rows(mesh, count)
    own = count if mesh is None or over_rows is None else count // mesh.shape[ROWS]

    def run(parts: int, state: SequenceState) -> SequenceState:
        del parts
        return jax.tree.map(lambda x: jnp.repeat(x, own, axis=0), state)

    return on_shards(run, state, out=lambda state: jax.tree.map(lambda spec: lying(over_rows, *spec[1:]), state))


def _over_rows(mesh: AnyMesh, batch: int) -> str | None:
    rows = mesh.shape[ROWS]
    return ROWS if rows > 1 and batch % rows == 0 else None


def seats_on(params: Params, seats: int) -> int:
    """At least so many sequences for a running state: of several, every row of a mesh has the same number."""
    mesh = devices_of(params)
    return seats if mesh is None else seats_on_rows(mesh.shape[ROWS], seats)


def seats_on_rows(rows: int, seats: int) -> int:
    """`seats_on` a mesh of so many rows."""
    return seats if seats == 1 else -(-seats // rows) * rows


def idle_state(
    decoder: Decoder, settings: RowSettings, slots: int, sequences: SequenceState | None = None
) -> DecodeState:
    """Rows with nothing to do. No two arrays share memory, so that the state can be consumed.

    `sequences` are those of the rows, if they have been made.
    """
    batch = len(settings.seed)
    pending, budget, streak, skip, sequence, dropped = (jnp.zeros((batch,), jnp.int32) for _ in range(6))
    if sequences is None:
        sequences = decoder.init_state(batch, slots)
    counts = None if settings.leaning is None else no_counts(batch, decoder.target.vocab_size)
    return DecodeState(sequences, pending, budget, streak, skip > 0, sequence, settings, dropped, counts=counts)


def new_state(decoder: Decoder, params: Params, settings: RowSettings, slots: int) -> DecodeState:
    """`idle_state`, where the parameters lie."""
    batch = len(settings.seed)
    sequences = None if devices_of(params) is None else new_sequences(decoder, params, batch, slots)
    return beside(params, idle_state(decoder, settings, slots, sequences))


def widened(state: DecodeState, params: Params, room: Room, vocab_size: int) -> DecodeState:
    """The state with more room in its settings, at least as much as there is."""
    stops, batch = state.settings.stop_tokens, len(state.budget)
    stops = jnp.pad(stops, ((0, 0), (0, room.stop_tokens - stops.shape[1])), constant_values=NO_STOP)
    state = replace(state, settings=replace(state.settings, stop_tokens=stops))
    if not room.leaning or state.counts is not None:
        return state
    leaning, counts = beside(params, (LeaningRows.of([NO_LEANING] * batch), no_counts(batch, vocab_size)))
    return replace(state, settings=replace(state.settings, leaning=leaning), counts=counts)


def beside(params: Params, arrays: _Tree) -> _Tree:
    """Arrays with one entry a sequence where the parameters lie; on a mesh those that lie there stay as they are."""
    mesh = devices_of(params)
    if mesh is None:
        return on_device_of(params, arrays)

    def lie(x: jax.Array) -> jax.Array:
        if devices_of(x) is not None:
            return x
        spec = PartitionSpec(_over_rows(mesh, len(x)), *(None,) * (x.ndim - 1))
        return placed(x, NamedSharding(mesh, spec))

    return jax.tree.map(lie, arrays)


def outline_of_state(decoder: Decoder, settings: RowSettings, slots: int, mesh: AnyMesh | None = None) -> DecodeState:
    """The shapes of `new_state`, and how they lie on a mesh; it need not be there, and None is one device."""
    if mesh is None:
        return jax.eval_shape(lambda: idle_state(decoder, settings, slots))
    batch, over_rows = len(settings.seed), _over_rows(mesh, len(settings.seed))
    sequences = jax.eval_shape(partial(_in_parts, decoder, mesh, batch, slots, LONGEST_CHUNK))
    shapes = jax.eval_shape(partial(idle_state, decoder, settings, slots), sequences)
    others = jax.tree.map(lambda x: PartitionSpec(over_rows, *(None,) * (x.ndim - 1)), shapes)
    specs = replace(others, sequences=specs_of_sequences(decoder, mesh.shape[MODEL], batch, slots, over_rows))
    return jax.tree.map(
        lambda x, spec: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), shapes, specs
    )


def constraint_specs(constraint: Constraint, over_rows: str | None = None) -> Constraint:
    """How grammars lie on a mesh; `over_rows` is the axis that the sequences are split over, if they are."""
    tables = jax.tree.map(lambda _: REPLICATED, constraint.tables)
    rows = jax.tree.map(lambda _: PartitionSpec(over_rows), constraint.rows)
    return Constraint(replace(tables, classes=PartitionSpec(None, MODEL)), rows)


def with_constraint(state: DecodeState, params: Params, constraint: Constraint) -> DecodeState:
    """The state with these grammars, where the parameters lie."""
    mesh = devices_of(params)
    if mesh is None:
        return replace(state, constraint=on_device_of(params, constraint))
    constraint = replace(constraint, tables=constraint.tables.divisible(mesh.shape[MODEL]))
    specs = constraint_specs(constraint, _over_rows(mesh, len(state.pending)))
    lie = jax.tree.map(lambda x, spec: placed(x, NamedSharding(mesh, spec)), constraint, specs)
    return replace(state, constraint=lie)


def on_device_of(params: Params, arrays: _Tree) -> _Tree:
    """Put new arrays on the device that the parameters are committed to, if they are committed to one. Outputs of a
    program with such parameters are committed too. JAX would compile a second program for arrays that are not.
    """
    for leaf in jax.tree.leaves(params):
        if isinstance(leaf, jax.Array) and leaf.committed and isinstance(leaf.sharding, SingleDeviceSharding):
            return jax.device_put(arrays, leaf.device)
    return arrays
