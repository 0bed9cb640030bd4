"""Calls of norms that every implementation is held to, and their law in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np

from pallas_kernels.rms_norm import l2_norm, rms_norm

EPSILON = 1e-6


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """Rows of some width; with a weight or not, with a gate or not; of all norms or the L2 norm."""

    width: int
    weighted: bool = False
    gated: bool = False
    l2: bool = False

    @cached_property
    def x(self) -> np.ndarray:
        """[2, 5, D], far from length 1."""
        return 3 * draw(2, 5, self.width)

    @cached_property
    def options(self) -> dict[str, Any]:
        """What the norm takes by name."""
        weight = {"weight": draw(self.width)} if self.weighted else {}
        return weight | ({"gate": 4 * draw(2, 5, self.width)} if self.gated else {})

    def run(self, impl: str | None) -> jax.Array:
        norm = partial(l2_norm if self.l2 else rms_norm, epsilon=EPSILON, impl=impl)
        return norm(self.x, **self.options)

    @property
    def want(self) -> np.ndarray:
        """By the definition."""
        x = self.x.astype(np.float64)
        squares = np.sum(x**2, axis=-1, keepdims=True)
        out = x / np.sqrt((squares if self.l2 else squares / self.width) + EPSILON)
        gate = np.asarray(self.options.get("gate", np.inf), np.float64)
        silu = gate / (1 + np.exp(-gate)) if self.gated else 1
        return out * self.options.get("weight", 1) * silu


CASES = {
    f"{name}, {width} wide": Case(width, **kinds)
    for width in (1, 31, 128, 1000)
    for name, kinds in {
        "plain": {},
        "weighted": {"weighted": True},
        "gated": {"weighted": True, "gated": True},
        "L2": {"l2": True},
    }.items()
}
