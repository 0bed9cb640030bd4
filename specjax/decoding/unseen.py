"""What a drafter has not been given of rounds that drafted nothing, and giving it.

Such rounds leave the drafter's part of the state behind the others. To bring it up is for nothing if the row's text
ends before anything is drafted again. So rounds write what their drafter has not seen into a buffer, and whoever wants
drafts, or the whole state, gives all of it at once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Int

from specjax.decoding.decoder import Decoder
from specjax.mesh.rows import Sharing, anywhere
from specjax.mesh.shards import on_shards
from specjax.models.protocol import Drafter, Features, Params
from specjax.state import SequenceState

BLOCKS = (8, 32, 128)
"""How many tokens of each row a drafter is given at once: the smallest block in which they have room. The longest is no
longer than the chunks that states are made for, see `Decoder.init_state`."""

NOTHING = -1
"""Stands for a token where none waits."""


@struct.dataclass
class Waiting:
    """The tokens of the last C rounds without drafts, of each row. Every round writes the next column; after the last
    column comes the first one again.

    Attributes:
        next: the column of the next chunk's first round, the same in all rows.
        tokens: those that were fed in the round of a column, and wait; NOTHING where none does.
        features: the target's features of them, [B, C, ...]: those that the drafter asks for, in float32.
    """

    next: Int[Array, "B"]
    tokens: Int[Array, "B C"]
    features: Features

    @classmethod
    def none(cls, decoder: Decoder, rows: int, room: int) -> Waiting:
        """Nothing waits in any of B rows.

        Args:
            decoder: with the drafter that will be given what waits.
            rows: B.
            room: C, whole blocks of the longest kind; see `room_for`.
        """
        shape, request = (rows, room), decoder.request
        feature = jnp.zeros((*shape, decoder.target.width), jnp.float32)
        features = Features(feature if request.final_hidden else None, (feature,) * len(request.layer_inputs))
        features = jax.tree.map(jnp.copy, features)  # no two share memory, so that they can be consumed
        return cls(jnp.zeros((rows,), jnp.int32), jnp.full(shape, NOTHING, jnp.int32), features)

    @property
    def room(self) -> int:
        """C, the most rounds whose tokens can wait."""
        return self.tokens.shape[1]

    @property
    def waits(self) -> Bool[Array, "B C"]:
        """Whether a token waits in a column."""
        return self.tokens != NOTHING

    @property
    def count(self) -> Int[Array, "B"]:
        """How many tokens wait in each row."""
        return jnp.sum(self.waits, axis=1, dtype=jnp.int32)

    def without(self, left: Bool[Array, "B"]) -> Waiting:
        """What waits, but for rows whose texts have been left."""
        return replace(self, tokens=jnp.where(left[:, None], NOTHING, self.tokens))

    def with_round(self, index: Int[Array, ""], features: Features) -> Waiting:
        """Write the features of a round's tokens. Nothing may wait in its column any more.

        Args:
            index: the number of the round in its chunk.
            features: those of the tokens that it feeds, [B, 1, ...].
        """
        column = (self.next[0] + index) % self.room

        def write(all_rounds: Array, new: Array) -> Array:
            return lax.dynamic_update_slice_in_dim(all_rounds, new.astype(all_rounds.dtype), column, axis=1)

        return replace(self, features=jax.tree.map(write, self.features, features))

    def after(self, rounds: Int[Array, ""], tokens: Int[Array, "N B"], fed: Bool[Array, "N B"]) -> Waiting:
        """What waits after a chunk, whose rounds have written their features. Tokens are written all at once: in each
        round that would take a twentieth of the time of a tiny model.

        Args:
            rounds: how many there were, at most N.
            tokens: what each row has fed in each round.
            fed: whether it has.
        """
        round_of = (jnp.arange(self.room) - self.next[0]) % self.room  # by column; XLA's scatter is slow on CPUs
        new = jnp.where(fed, tokens, NOTHING)[jnp.minimum(round_of, len(tokens) - 1)].T
        written = jnp.where(round_of < rounds, new, self.tokens)
        return replace(self, next=(self.next + rounds) % self.room, tokens=written)

    def columns(self) -> Int[Array, "B C"]:
        """The columns of the tokens that wait, in the order in which they were fed; others come after them."""
        columns = (self.next[0] + jnp.arange(self.room)) % self.room
        return columns[jnp.argsort(~self.waits[:, columns], axis=1, stable=True)]


def room_for(rounds: int) -> int:
    """C, where the tokens of so many rounds are to have room: whole blocks."""
    return -(-rounds // BLOCKS[-1]) * BLOCKS[-1]


@partial(jax.jit, static_argnames="drafter", donate_argnames=("state", "waiting"))
def give_unseen(
    drafter: Drafter, params: Params, state: SequenceState, waiting: Waiting, left: Bool[Array, "B"]
) -> tuple[SequenceState, Waiting]:
    """The state after its drafter has been given what waits, and the buffer without it.

    In rows that their texts have `left` nothing is given. What waits in others must be the last tokens of each row, all
    those that the drafter has not been given.
    Only as many blocks are looked at as hold something, so that few tokens cost little.
    """
    sharing = Sharing.of(waiting)

    def run(
        parts: int, params: Params, state: SequenceState, waiting: Waiting, left: Array
    ) -> tuple[SequenceState, Waiting]:
        wanted = waiting.without(sharing.own(left, len(waiting.tokens)))
        own = _given(drafter.shard(parts), params, state, wanted)
        return replace(state, drafter=own), replace(waiting, tokens=jnp.full_like(waiting.tokens, NOTHING))

    return on_shards(run, params, state, waiting, left, out=lambda params, state, waiting, _: (state, waiting))


def _given(drafter: Drafter, params: Params, state: SequenceState, waiting: Waiting) -> object:
    """The drafter's part of the state after it has been given everything, on one of the parts of the model."""
    count, columns = waiting.count, waiting.columns()
    length = state.length - count  # before the first one that waits

    def give(size: int, start: Array, own: object) -> tuple:
        block = lax.dynamic_slice_in_dim(columns, start, size, axis=1)

        def taken(x: Array) -> Array:
            return jnp.take_along_axis(x, block.reshape(*block.shape, *(1,) * (x.ndim - 2)), axis=1)

        tokens, features = jax.tree.map(taken, (waiting.tokens, waiting.features))
        n_valid = jnp.clip(count - start, 0, size)
        tokens = jnp.maximum(tokens, 0)  # behind those that wait
        own = drafter.extend(params, tokens, features, n_valid, own, length + jnp.minimum(start, count))
        return start + size, own

    def give_next(carry: tuple) -> tuple:
        start, own = carry
        smallest = sum(anywhere(count - start > size).astype(jnp.int32) for size in BLOCKS[:-1])
        return lax.switch(smallest, [partial(give, size) for size in BLOCKS], start, own)

    return lax.while_loop(lambda carry: anywhere(carry[0] < count), give_next, (jnp.int32(0), state.drafter))[1]
