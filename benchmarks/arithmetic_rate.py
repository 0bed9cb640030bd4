"""How fast this machine's CPU multiplies: the limit of products of many rows, and of attention.

A loop of nothing but sums of products, which do not wait for each other, runs on all cores at once.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

SUMS, ROUNDS, REPETITIONS = 12, 2_000_000, 5


class Multiplication(NamedTuple):
    """What multiplies a register with itself and adds the products to a sum.

    Attributes:
        code: in assembler: %0 is the sum, %1 a register for whatever it is needed for, and %2 what is multiplied.
        register: its type in C.
        products: how many it forms.
        flags: of the compiler.
    """

    code: str
    register: str
    products: int
    flags: tuple[str, ...]


_BYTES = Multiplication("vpdpbusd %2, %2, %0", "__m512i", 64, ("-mavx512f", "-mavx512vnni"))
_FLOATS = Multiplication("vfmadd231ps %2, %2, %0", "__m512", 16, ("-mavx512f",))
OF_BYTES = {
    "avx2": Multiplication("vpmaddubsw %2, %2, %1; vpaddw %1, %0, %0", "__m256i", 32, ("-mavx2",)),
    "avx512vnni": _BYTES,
    "amx": _BYTES,
}
OF_FLOATS = {
    "avx2": Multiplication("vfmadd231ps %2, %2, %0", "__m256", 8, ("-mavx2", "-mfma")),
    "avx512vnni": _FLOATS,
    "amx": _FLOATS,
}
"""By the instruction set of the native kernels, as `native.instruction_set()` names it. That of AMX is what vectors
allow: tiles have no rate of their own, as they wait for the scales of each block."""


class Arithmetic:
    """A loop of one multiplication. Needs a C compiler."""

    def __init__(self, multiplication: Multiplication) -> None:
        """
        Args:
            multiplication: one that this machine has.
        """
        compiler = shutil.which(os.environ.get("CC", "cc"))
        if compiler is None:
            raise SystemExit("the limit of arithmetic needs a C compiler: install gcc or clang, or name one in CC")
        self.products = multiplication.products
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder, "loop.so")
            flags = ("-O2", *multiplication.flags, "-shared", "-fPIC", "-x", "c", "-")
            subprocess.run([compiler, *flags, "-o", library], input=_source(multiplication), text=True, check=True)
            self.loop = ctypes.CDLL(str(library)).multiply

    def rate(self) -> float:
        """Products per second on all cores: the best of some runs."""
        cores, times = os.cpu_count() or 1, []
        with ThreadPoolExecutor(cores) as pool:
            for _ in range(REPETITIONS):
                begin = time.perf_counter()
                list(pool.map(lambda _: self.loop(), range(cores)))
                times.append(time.perf_counter() - begin)
        return cores * SUMS * ROUNDS * self.products / min(times)


def _source(multiplication: Multiplication) -> str:
    # One variable for each sum: compilers keep an array of them in memory.
    names = [f"sum{i}" for i in range(SUMS)]
    one_round = " ".join(
        f'asm volatile("{multiplication.code}" : "+v"({name}), "=&v"(scratch) : "v"(x));' for name in names
    )
    return f"""
#include <immintrin.h>
void multiply(void) {{
  {multiplication.register} scratch, x = {{0}}, {", ".join(f"{name} = {{0}}" for name in names)};
  for (long round = 0; round < {ROUNDS}; ++round) {{ {one_round} }}
}}
"""
