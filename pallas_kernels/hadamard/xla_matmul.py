"""One product with the scaled matrix.

Butterflies do log2(N) operations per value instead of N, but XLA's CPU backend takes ten times as long to compile them
and no less time to run them, and other devices have units for matrices.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels.hadamard.reference import matrix


def transform(x: Array) -> Array:
    """[..., N] float32."""
    width = x.shape[-1]
    scaled = matrix(width) * np.float32(width**-0.5)
    return jnp.matmul(x.astype(jnp.float32), jnp.asarray(scaled), precision="highest")
