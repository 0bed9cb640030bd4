"""How fast this machine's CPU multiplies bytes with AVX-512 VNNI: the limit of quantized products of many rows."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUMS, ROUNDS, REPETITIONS = 12, 2_000_000, 5
BYTES = 64
"""Products of one instruction."""

# One variable for each sum: compilers keep an array of them in memory.
NAMES = [f"sum{i}" for i in range(SUMS)]
SOURCE = f"""
#include <immintrin.h>
int multiply(void) {{
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(2);
  __m512i {", ".join(f"{name} = b" for name in NAMES)};
  for (long round = 0; round < {ROUNDS}; ++round) {{
    {" ".join(f'asm volatile("vpdpbusd %2, %1, %0" : "+v"({name}) : "v"(a), "v"(b));' for name in NAMES)}
  }}
  return _mm512_reduce_add_epi32({" + ".join(NAMES)});
}}
"""


def vnni_loop() -> Callable[[], int]:
    """A loop of nothing but such instructions, which do not wait for each other. Needs a C compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        raise SystemExit("the limit of arithmetic needs a C compiler: install gcc or clang, or name one in CC")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "loop.so")
        flags = ("-O2", "-mavx512f", "-mavx512vnni", "-shared", "-fPIC", "-x", "c", "-")
        subprocess.run([compiler, *flags, "-o", library], input=SOURCE, text=True, check=True)
        return ctypes.CDLL(str(library)).multiply


def vnni_rate(loop: Callable[[], int]) -> float:
    """Products of bytes per second on all cores: the best of some runs."""
    cores, times = os.cpu_count() or 1, []
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            list(pool.map(lambda _: loop(), range(cores)))
            times.append(time.perf_counter() - begin)
    return cores * SUMS * ROUNDS * BYTES / min(times)
