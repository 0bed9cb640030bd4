"""Random numbers to try kernels with."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

_PERIOD = 1048573
"""A prime: numbers that are repeated after so many fall on other places of an array's axes."""


def normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> Array:
    """Random numbers. By numpy: jax would compile a program for each shape."""
    drawn = np.random.default_rng(seed).standard_normal(min(math.prod(shape), _PERIOD), np.float32)
    return jnp.asarray(np.resize(drawn.astype(dtype), shape))
