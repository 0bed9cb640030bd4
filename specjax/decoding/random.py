"""Random draws as a function of what they are for, never of when they are made.

Each draw is keyed by (seed, sequence, position, purpose) and, for vocabulary noise, by the token id. It therefore does
not depend on batch size or order, on the number of drafts, on sharding, or on which tokens were looked at. The chain of
keys is Threefry (Salmon et al. 2011), so the random bits are the same on every platform; the logarithms that turn them
into Gumbel noise may differ in the last place.

One key serves one committed token: speculation may compute the noise of a position several times while it drafts past
it, and only the use that ends in a committed token counts. That is sound as long as whatever was drafted beyond a
rejected token leaves no trace.
"""

from enum import IntEnum

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt


class Purpose(IntEnum):
    """What a draw decides. The numbers are part of what a seed means: never renumber them."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


def _keys(seed, sequence, position, purpose):
    def leading(x):
        x = jnp.asarray(x)
        return jnp.broadcast_to(x.reshape(x.shape + (1,) * (position.ndim - x.ndim)), position.shape)

    root = jax.random.key(seed, impl="threefry2x32")

    def chain(*parts):
        key = root
        for part in parts:
            key = jax.random.fold_in(key, part)
        return key

    for _ in range(position.ndim):
        chain = jax.vmap(chain)
    return chain(leading(sequence), position, leading(purpose))


def _bits(keys, index):
    """A 32-bit word for every index under one key. Folding in is itself the Threefry hash: one call gives one word."""
    return jax.random.key_data(jax.vmap(jax.random.fold_in, (None, 0))(keys, index))[:, 0]


def gumbel_at(
    seed: UInt[Array, ""] | int,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
    purpose: Purpose | Int[Array, "B"],
    tokens: Int[Array, "B *T N"],
) -> Float[Array, "B *T N"]:
    """Standard Gumbel noise of the given token ids (float32): what `gumbel` gives at those ids, without the rest.

    `purpose` is one for all, or one per sequence.
    """
    draw = _bits
    for _ in range(position.ndim):
        draw = jax.vmap(draw)
    bits = draw(_keys(seed, sequence, position, purpose), tokens)
    # The large values decide who wins the argmax. They come from u near 0, where float32 is finest, and not from u near
    # 1, where its steps would make ties among rare tokens. At u = 1 the noise would be -inf and could exclude a token.
    u = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-u))


def gumbel(
    seed: UInt[Array, ""] | int,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
    purpose: Purpose | Int[Array, "B"],
    vocab_size: int,
) -> Float[Array, "B *T V"]:
    """Standard Gumbel noise for every token of the vocabulary (float32). `position` is absolute: [B] or [B, T]."""
    tokens = jnp.broadcast_to(jnp.arange(vocab_size), (*position.shape, vocab_size))
    return gumbel_at(seed, sequence, position, purpose, tokens)


def uniform(
    seed: UInt[Array, ""] | int,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
    purpose: Purpose | Int[Array, "B"],
) -> Float[Array, "B *T"]:
    """Uniform draws in [0, 1), multiples of 2^-24 (float32). `position` is absolute: [B] or [B, T]."""
    keys = _keys(seed, sequence, position, purpose)
    return (jax.random.key_data(keys)[..., 0] >> 8).astype(jnp.float32) * 2.0**-24
