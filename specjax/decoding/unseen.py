"""What a drafter has not been given of rounds that drafted nothing, and giving it.

Such rounds leave the drafter's part of the state behind the others. To bring it up is for nothing if the row's text
ends before anything is drafted again. So a chunk returns what its drafter has not seen, and whoever wants drafts, or
the whole state, gives it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int

from specjax.mesh.rows import Sharing
from specjax.mesh.shards import on_shards
from specjax.models.protocol import Drafter, Features, Params
from specjax.state import SequenceState

BLOCKS = (8, 32, 128)
"""Rounds whose tokens a drafter is given at once: the smallest block in which they have room. The longest is no longer
than the chunks that states are made for, see `Decoder.init_state`."""


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


@partial(jax.jit, static_argnames="drafter", donate_argnames="state")
def give_unseen(
    drafter: Drafter, params: Params, state: SequenceState, unseen: Unseen, rows: Bool[Array, "B"]
) -> SequenceState:
    """The state after its drafter has been given what it has not seen of a chunk, in these rows.

    Chunks are given in the order in which they have run. Only as many blocks of rounds as were run are looked at, so
    that a short chunk costs little.
    """
    sharing = Sharing.of(state)

    def run(parts: int, params: Params, state: SequenceState, unseen: Unseen, rows: Array) -> SequenceState:
        n_fed = unseen.n_fed * sharing.own(rows, len(state.length))
        own = _given(drafter.shard(parts), params, state.drafter, replace(unseen, n_fed=n_fed))
        return replace(state, drafter=own)

    return on_shards(run, params, state, unseen, rows, out=lambda params, state, *_: state)


def _given(drafter: Drafter, params: Params, own: object, unseen: Unseen) -> object:
    """The drafter's part of the state after it has been given everything, on one of the parts of the model."""
    rounds = unseen.n_fed.shape[0]
    sizes = [*(size for size in BLOCKS[:-1] if size < rounds), min(rounds, BLOCKS[-1])]
    columns = jax.tree.map(
        lambda x: jnp.pad(x, ((0, -rounds % sizes[-1]), *((0, 0),) * (x.ndim - 1))),
        (unseen.tokens, unseen.n_fed, unseen.features),
    )

    def give(size: int, start: Array, length: Array, own: object) -> tuple:
        block = jax.tree.map(lambda x: jnp.swapaxes(jax.lax.dynamic_slice_in_dim(x, start, size), 0, 1), columns)
        tokens, n_fed, features = block
        features = jax.tree.map(lambda x: x[:, :, 0], features)
        n_valid = jnp.sum(n_fed, axis=1)  # the rounds of a row that is done come last
        return length + n_valid, drafter.extend(params, tokens, features, n_valid, own, length)

    def give_next(carry: tuple) -> tuple:
        start, length, own = carry
        smallest = jnp.searchsorted(jnp.asarray(sizes[:-1]), unseen.n_rounds - start)
        length, own = jax.lax.switch(smallest, [partial(give, size) for size in sizes], start, length, own)
        return start + jnp.asarray(sizes)[smallest], length, own

    carry = (jnp.int32(0), unseen.length, own)
    return jax.lax.while_loop(lambda carry: carry[0] < unseen.n_rounds, give_next, carry)[2]
