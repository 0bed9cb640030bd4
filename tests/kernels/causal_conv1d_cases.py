"""Calls of the causal convolution that every implementation is held to, and their law in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from lowering import here

from pallas_kernels.causal_conv1d import causal_conv1d
from pallas_kernels.causal_conv1d.implementations import CAUSAL_CONV1D
from pallas_kernels.causal_conv1d.reference import convolve

B, C, W = 2, 128, 4
ROUNDING = {"float32": 1e-6, "bfloat16": 2e-3, "float16": 3e-4}
"""Relative root mean square error: that of rounding the outputs."""


def runnable() -> list[Any]:
    """Parameters of tests: implementations that run on any machine."""
    return here(CAUSAL_CONV1D.names())


@dataclass(frozen=True)
class Case:
    """Some tokens after a window."""

    n_tokens: int
    dtype: str = "float32"
    activation: str | None = "silu"

    @cached_property
    def arguments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """x, weight and window."""
        rng = np.random.default_rng(self.n_tokens)
        x, weight, window = (
            rng.standard_normal(shape).astype(jnp.dtype(self.dtype))
            for shape in ((B, self.n_tokens, C), (C, W), (B, W - 1, C))
        )
        return x, weight.astype(np.float32), window

    def run(self, impl: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        run = partial(causal_conv1d, activation=self.activation, impl=impl)
        return jax.tree.map(np.asarray, jax.jit(run)(*self.arguments))

    @cached_property
    def inputs(self) -> np.ndarray:
        """The window and the tokens."""
        x, _, window = self.arguments
        return np.concatenate([window, x], axis=1)

    @cached_property
    def want(self) -> np.ndarray:
        """What the reference makes of it in float64."""
        with jax.enable_x64(True):
            run = jax.jit(partial(convolve, activation=self.activation, dtype=jnp.float64))
            return np.asarray(run(self.inputs.astype(np.float64), self.arguments[1].astype(np.float64)))


CASES = {
    "one token": Case(1),
    "fewer tokens than taps, in bfloat16": Case(3, "bfloat16", None),
    "in float16": Case(9, "float16"),
    "no activation": Case(9, "float32", None),
}


def error(got: Any, expected: np.ndarray) -> float:
    """Relative root mean square."""
    return float(np.sqrt(np.mean((np.asarray(got, np.float64) - expected) ** 2) / np.mean(expected**2)))
