"""What memory and arithmetic of this machine's CPU allow, measured beside what is held against it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from arithmetic_rate import Arithmetic, Multiplication
from machine import read_rate

from pallas_kernels import native

BYTES_READ = 1 << 28


class Limit:
    """The best rates so far: of reads, in bytes per second, and of products, infinite where not known.

    Attributes:
        reads, products: the rates.
    """

    def __init__(self, multiplications: Mapping[str, Multiplication]) -> None:
        """
        Args:
            multiplications: those that the CPU may have, by the instruction set of the native kernels.
        """
        floats = jnp.ones((BYTES_READ // 4 // 4096, 4096), jnp.float32)
        self._pieces = jnp.array_split(floats, os.cpu_count() or 1)
        known = native.available() and multiplications.get(native.instruction_set())
        self._arithmetic = Arithmetic(known) if known else None
        self.reads, self.products = 0.0, 0.0 if self._arithmetic else np.inf

    def measure(self) -> None:
        """Look again."""
        self.reads = max(self.reads, read_rate(self._pieces))
        if self._arithmetic:
            self.products = max(self.products, self._arithmetic.rate())

    def seconds(self, read: int, products: int) -> float:
        """The least time of so many bytes and products."""
        return max(read / self.reads, products / self.products)
