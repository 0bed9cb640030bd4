"""Calls of the Walsh-Hadamard transform that every implementation is held to, and their law in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import here

from pallas_kernels.hadamard import walsh_hadamard
from pallas_kernels.hadamard.implementations import HADAMARD

BOUND = 1e-6
"""Relative root mean square error in float32; bfloat16 and float16 are exact in it."""


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[-1]).normal(size=shape).astype(np.float32)


def law(x: np.ndarray, before: Any = 1, after: Any = 1) -> np.ndarray:
    """By the definition, entry for entry."""
    width = x.shape[-1]
    signs = [[(-1) ** (i & j).bit_count() for j in range(width)] for i in range(width)]
    return after * np.einsum("...n,mn->...m", before * x.astype(np.float64), np.array(signs)) / np.sqrt(width)


@dataclass(frozen=True)
class Case:
    """Vectors of a type, and whether they have factors before and after."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    factors: bool = False

    @cached_property
    def x(self) -> np.ndarray:
        return draw(*self.shape).astype(jnp.dtype(self.dtype))

    @cached_property
    def options(self) -> dict[str, np.ndarray]:
        """What the transform takes by name."""
        before, after = draw(2, self.shape[-1])
        return {"before": before, "after": after} if self.factors else {}

    def run(self, impl: str | None) -> jax.Array:
        return jax.jit(partial(walsh_hadamard, impl=impl))(self.x, **self.options)

    @property
    def want(self) -> np.ndarray:
        return law(self.x.astype(np.float32), **self.options)


CASES = {
    **{f"{width} wide": Case((3, 2, width)) for width in (1, 2, 64, 128, 256)},
    **{f"with factors, in {dtype}": Case((5, 16), dtype, True) for dtype in ("bfloat16", "float16")},
}


def runnable() -> list[Any]:
    """Parameters of tests: implementations that run on any machine."""
    return here(HADAMARD.names())


def fitting() -> list[Any]:
    """Every case with every implementation. Mosaic GPU's interpreter takes half a minute for those of 64 and 128."""
    slow = ("64 wide", "128 wide")
    return [
        pytest.param(name, *impl.values, marks=(*impl.marks, *slowly))
        for name in CASES
        for impl in runnable()
        for slowly in [[pytest.mark.slow] if name in slow and impl.values == ("pallas_gpu_interpret",) else []]
    ]
