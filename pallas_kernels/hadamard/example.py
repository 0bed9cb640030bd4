"""Calls as caches make them, for those who measure."""

from jax import Array

from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

SHAPES: tuple[Dims, ...] = tuple({"N": width, "rows": rows} for width in (64, 128, 256, 512) for rows in (32, 8192))
"""Heads of models, of few tokens and of a prompt."""


def example(dims: Dims) -> tuple[Array]:
    """Random vectors, 1024 unless the sizes say how many."""
    return (normal(0, dims.get("rows", 1024), dims["N"]),)
