"""Random draws as a function of what they are for, never of when they are made.

Each draw is keyed by (seed, sequence, position, purpose) and, for vocabulary noise, by the token id. It therefore does
not depend on batch size or order, on the number of drafts, on sharding, or on which tokens were looked at. The bits are
those of the Threefry hash and the same on every platform; the logarithms that turn them into Gumbel noise may differ in
the last place.

One key serves one committed token: speculation may compute the noise of a position several times while it drafts past
it, and only the use that ends in a committed token counts. That is sound as long as whatever was drafted beyond a
rejected token leaves no trace. Where it leaves one, as in block verification, `of_round` makes the keys of two rounds
differ.
"""

from enum import IntEnum
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt


class Purpose(IntEnum):
    """What a draw decides. The numbers are part of what a seed means: never renumber them."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


Purposes = Purpose | Int[Array, ""] | Int[Array, "B"] | Int[Array, "B *T"]
"""One purpose for all sequences, or one for each, or one for each position."""

PURPOSES = 256
"""So many numbers belong to each distance from the start of a round."""


def of_round(purpose: Purpose, ahead: Int[Array, "*T"]) -> Int[Array, "*T"]:
    """The purpose for draws that are used in one round only, so many positions ahead of its start.

    A round emits at least one token, so that no two rounds of a sequence start at the same position: a position and
    its distance from the start say which round it is. At the start it is the plain purpose.
    """
    return purpose + PURPOSES * ahead


Seeds = UInt[Array, ""] | UInt[Array, "B"] | int
"""One seed for all sequences, or one for each."""


@jax.jit
def _threefry(key, counter):
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), elementwise: two uint32 words from a key and a counter of two.

    jax.random has the same hash behind keys that each hold one stream. Hashing the coordinates themselves takes two
    calls for a draw where a chain of fold_in takes six, compiles several times faster, and fuses with its consumer.
    """
    k0, k1 = (jnp.asarray(k).astype(jnp.uint32) for k in key)
    x0, x1 = (jnp.asarray(x).astype(jnp.uint32) for x in counter)
    schedule = (k0, k1, k0 ^ k1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << distance) | (x1 >> (32 - distance)))
        x0 = x0 + schedule[(group + 1) % 3]
        x1 = x1 + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1


class Key(NamedTuple):
    """What all draws at a position have in common: two words, with a last axis for tokens."""

    first: UInt[Array, "B *T 1"]
    second: UInt[Array, "B *T 1"]


def key_at(seed: Seeds, sequence: Int[Array, "B"], position: Int[Array, "B *T"]) -> Key:
    """The key of the draws at absolute positions: [B] or [B, T]."""
    own, text = (_leading(each, position.ndim + 1) for each in (jnp.asarray(seed, jnp.uint32), sequence))
    return Key(*_threefry((0, own), (text, position[..., None])))


def _leading(x, ndim):
    x = jnp.asarray(x)
    return x.reshape(x.shape + (1,) * (ndim - x.ndim))


def _bits(key: Key, purpose, token):
    """A 32-bit word for each token [B, *T, M] or, where `token` is a number, for each position [B, *T, 1]."""
    return _threefry(key, (_leading(purpose, key.first.ndim), token))[0]


def gumbel_at(key: Key, purpose: Purposes, tokens: Int[Array, "B *T M"]) -> Float[Array, "B *T M"]:
    """Standard Gumbel noise of the given token ids (float32): what `gumbel` gives at those ids, without the rest.

    `purpose` is one for all, or one per sequence.
    """
    bits = _bits(key, purpose, tokens)
    # The large values decide who wins the argmax. They come from u near 0, where float32 is finest, and not from u near
    # 1, where its steps would make ties among rare tokens. At u = 1 the noise would be -inf and could exclude a token.
    u = jnp.minimum((bits.astype(jnp.float32) + 0.5) * 2.0**-32, 1 - 2.0**-24)
    return -jnp.log(-jnp.log1p(-u))


def gumbel(
    seed: Seeds,
    sequence: Int[Array, "B"],
    position: Int[Array, "B *T"],
    purpose: Purposes,
    vocab_size: int,
) -> Float[Array, "B *T V"]:
    """Standard Gumbel noise for every token of the vocabulary (float32). `position` is absolute: [B] or [B, T]."""
    tokens = jnp.broadcast_to(jnp.arange(vocab_size), (*position.shape, vocab_size))
    return gumbel_at(key_at(seed, sequence, position), purpose, tokens)


def uniform(key: Key, purpose: Purposes) -> Float[Array, "B *T"]:
    """Uniform draws in [0, 1), multiples of 2^-24 (float32)."""
    bits = _bits(key, purpose, 0)[..., 0]
    return (bits >> 8).astype(jnp.float32) * 2.0**-24
