"""The order of queries in kernels of which a program serves one KV head."""

import jax.numpy as jnp
from jaxtyping import Array, Shaped


def by_kv_head(x: Shaped[Array, "B T H *N"], kv_heads: int) -> Shaped[Array, "B G R *N"]:
    """The R = T * H / G queries of each KV head together, token by token."""
    batch, rows, heads, *rest = x.shape
    x = jnp.moveaxis(x.reshape(batch, rows, kv_heads, heads // kv_heads, *rest), 2, 1)
    return x.reshape(batch, kv_heads, rows * (heads // kv_heads), *rest)


def by_token(x: Shaped[Array, "B G R *N"], rows: int) -> Shaped[Array, "B T H *N"]:
    """Of T = `rows` tokens; undoes `by_kv_head`."""
    batch, kv_heads, count, *rest = x.shape
    x = jnp.moveaxis(x.reshape(batch, kv_heads, rows, count // rows, *rest), 1, 2)
    return x.reshape(batch, rows, kv_heads * (count // rows), *rest)
