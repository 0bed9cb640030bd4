"""The index of the largest value of a long axis."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from specjax.mesh.shards import gathered, part_index, parts


def argmax(x: Float[Array, "*T V"]) -> Int[Array, "*T"]:
    """The index of the largest value, of equal ones the first, int32; where there are NaNs, that of the first NaN.

    Where a model is split, V are the tokens of a part, and the index is that of all parts.
    """
    own = _argmax(x)
    if parts() == 1:
        return own
    values = jnp.take_along_axis(x, own[..., None], axis=-1).astype(jnp.float32)
    tokens = (own + part_index() * x.shape[-1])[..., None]
    bits, tokens = gathered(jnp.stack([lax.bitcast_convert_type(values, jnp.int32), tokens]))
    best = jnp.argmax(lax.bitcast_convert_type(bits, jnp.float32), axis=-1, keepdims=True)
    return jnp.take_along_axis(tokens, best, axis=-1)[..., 0]


def _argmax(x: Float[Array, "*T V"]) -> Int[Array, "*T"]:
    """See `argmax`, within a part.

    `jnp.argmax` compares pairs of value and index one after the other, which XLA's CPU backend does not vectorise.
    Largest values of blocks are vectorised, and leave two short axes to search.
    """
    size = x.shape[-1]
    block = next(n for n in (256, 128, 64, 32, 16, 1) if size % n == 0)
    if block == 1:
        return jnp.argmax(x, axis=-1).astype(jnp.int32)
    blocks = x.reshape(*x.shape[:-1], size // block, block)
    which = jnp.argmax(jnp.max(blocks, axis=-1), axis=-1)
    own = jnp.take_along_axis(blocks, which[..., None, None], axis=-2)[..., 0, :]
    return (which * block + jnp.argmax(own, axis=-1)).astype(jnp.int32)
