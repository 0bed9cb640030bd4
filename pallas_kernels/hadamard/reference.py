"""The law of the Walsh-Hadamard transform: a product with the matrix that its definition gives."""

import jax.numpy as jnp
import numpy as np
from jax import Array


def matrix(width: int) -> np.ndarray:
    """[N, N] of +1 and -1 in natural order; symmetric. N is a power of two."""
    rows, columns = np.indices((width, width))
    return np.where(np.bitwise_count(rows & columns) % 2, -1, 1).astype(np.float32)


def transform(x: Array, before: Array | None, after: Array | None) -> Array:
    """Transform each row of x, [..., N]; the result is float32."""
    width = x.shape[-1]
    x = x.astype(jnp.float32) * (1 if before is None else before)
    product = jnp.einsum("...n,mn->...m", x, jnp.asarray(matrix(width)), precision="highest")
    return product / jnp.sqrt(jnp.float32(width)) * (1 if after is None else after)
