"""What a drafter has not been given of rounds that drafted nothing, and giving it.

Such rounds leave the drafter's part of the state behind the others. To bring it up is for nothing if the row's text
ends before anything is drafted again. So a chunk returns what its drafter has not seen. It waits beside what waits of
earlier chunks, and whoever wants drafts, or the whole state, gives all of it at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int

from specjax.mesh.rows import Sharing, anywhere
from specjax.mesh.shards import ROWS, lying, on_shards
from specjax.models.protocol import Drafter, Features, Params
from specjax.state import SequenceState

BLOCKS = (8, 32, 128)
"""How many tokens of each row a drafter is given at once: the smallest block in which they have room. The longest is no
longer than the chunks that states are made for, see `Decoder.init_state`."""


@struct.dataclass
class Unseen:
    """The tokens of a chunk of up to N rounds without drafts.

    Attributes:
        n_rounds: how many rounds were run.
        length: committed tokens of each row before the chunk.
        tokens: what each round has fed.
        n_fed: 1, or 0 in a row that had finished.
        features: the target's features of these tokens, [N, B, 1, ...]: those that the drafter asks for.
    """

    n_rounds: Int[Array, ""]
    length: Int[Array, "B"]
    tokens: Int[Array, "N B"]
    n_fed: Int[Array, "N B"]
    features: Features


@struct.dataclass
class Waiting:
    """What waits to be given to a drafter, with room for C tokens of each row.

    Attributes:
        length: committed tokens of each row before the first one that waits.
        count: how many wait.
        tokens: those that wait come first.
        features: the target's features of them, [B, C, ...].
    """

    length: Int[Array, "B"]
    count: Int[Array, "B"]
    tokens: Int[Array, "B C"]
    features: Features


def room_for(tokens: int) -> int:
    """C, where so many tokens of each row are to have room: whole blocks."""
    return -(-tokens // BLOCKS[-1]) * BLOCKS[-1]


@partial(jax.jit, static_argnames="room")
def nothing_waits(unseen: Unseen, room: int) -> Waiting:
    """Room for so many tokens of each row, for chunks like this one. See `room_for`."""

    def run(parts: int, unseen: Unseen) -> Waiting:
        del parts

        def empty(x: Array, *shape: int) -> Array:
            return jnp.zeros((x.shape[1], room, *shape), x.dtype)

        features = jax.tree.map(lambda x: empty(x, *x.shape[3:]), unseen.features)
        nothing = jnp.zeros_like(unseen.length)
        return Waiting(nothing, nothing, empty(unseen.tokens), features)

    rows = lying(ROWS) if Sharing.of(unseen.length).split else lying()
    return on_shards(run, unseen, out=lambda _: rows)


@partial(jax.jit, donate_argnames="waiting")
def joined(waiting: Waiting, unseen: Unseen, kept: Bool[Array, "B"]) -> Waiting:
    """What waits, and behind it what was not seen of a chunk.

    Args:
        waiting: has room for the rounds of the chunk in every row, rounded up to whole blocks of the shortest kind.
        unseen: of the chunk.
        kept: the rows in which what waits is still wanted; in others it is forgotten.
    """
    sharing = Sharing.of(waiting)

    def run(parts: int, waiting: Waiting, unseen: Unseen, kept: Array) -> Waiting:
        del parts
        size, batch = BLOCKS[0], len(waiting.count)
        count = jnp.where(sharing.own(kept, batch), waiting.count, 0)
        blocks = (unseen.n_rounds + size - 1) // size

        def write(index: Array, all_rows: tuple[Array, Any]) -> tuple[Array, Any]:
            row, first = index // blocks, index % blocks * size

            def with_block(own: Array, new: Array) -> Array:
                ends = (0,) * (own.ndim - 2)
                block = lax.dynamic_slice(new, (first, row, *ends), (size, 1, *own.shape[2:]))
                return lax.dynamic_update_slice(own, block.swapaxes(0, 1), (row, count[row] + first, *ends))

            return jax.tree.map(with_block, all_rows, chunk)

        features = jax.tree.map(lambda x: x[:, :, 0], unseen.features)
        chunk = jax.tree.map(
            lambda x: jnp.pad(x, ((0, -len(x) % size), *((0, 0),) * (x.ndim - 1))), (unseen.tokens, features)
        )
        tokens, features = lax.fori_loop(0, batch * blocks, write, (waiting.tokens, waiting.features))
        return Waiting(
            length=jnp.where(count > 0, waiting.length, unseen.length),
            count=count + jnp.sum(unseen.n_fed, axis=0),  # the rounds of a row that is done come last
            tokens=tokens,
            features=features,
        )

    return on_shards(run, waiting, unseen, kept, out=lambda waiting, *_: waiting)


@partial(jax.jit, static_argnames="drafter", donate_argnames="state")
def give_unseen(
    drafter: Drafter, params: Params, state: SequenceState, waiting: Waiting, rows: Bool[Array, "B"]
) -> SequenceState:
    """The state after its drafter has been given what waits, in these rows.

    Only as many blocks are looked at as hold something, so that few tokens cost little.
    """
    sharing = Sharing.of(state)

    def run(parts: int, params: Params, state: SequenceState, waiting: Waiting, rows: Array) -> SequenceState:
        count = jnp.where(sharing.own(rows, len(state.length)), waiting.count, 0)
        own = _given(drafter.shard(parts), params, state.drafter, replace(waiting, count=count))
        return replace(state, drafter=own)

    return on_shards(run, params, state, waiting, rows, out=lambda params, state, *_: state)


def _given(drafter: Drafter, params: Params, own: object, waiting: Waiting) -> object:
    """The drafter's part of the state after it has been given everything, on one of the parts of the model."""
    length, count = waiting.length, waiting.count

    def give(size: int, start: Array, own: object) -> tuple:
        tokens, features = jax.tree.map(
            lambda x: lax.dynamic_slice_in_dim(x, start, size, axis=1), (waiting.tokens, waiting.features)
        )
        n_valid = jnp.clip(count - start, 0, size)
        own = drafter.extend(params, tokens, features, n_valid, own, length + jnp.minimum(start, count))
        return start + size, own

    def give_next(carry: tuple) -> tuple:
        start, own = carry
        smallest = sum(anywhere(count - start > size).astype(jnp.int32) for size in BLOCKS[:-1])
        return lax.switch(smallest, [partial(give, size) for size in BLOCKS], start, own)

    return lax.while_loop(lambda carry: anywhere(carry[0] < count), give_next, (jnp.int32(0), own))[1]
