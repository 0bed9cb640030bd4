"""What the benchmarks say of the machine: its name, and how fast it reads memory."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import lax

from pallas_kernels.measuring.timing import Effort, best_seconds

REPETITIONS = 10
COPYING = Effort(copies=1, cache_bytes=0, seconds=0.15, runs=3)


def description() -> str:
    """The processor or accelerator, and the versions that matter."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = f"{len(lines)} x {lines[0].split(': ', 1)[1]}" if lines else model
    device = jax.devices()[0]
    return f"{model if device.platform == 'cpu' else device.device_kind}, jax {jax.__version__}"


def read_rate(arrays: Sequence[jax.Array]) -> float:
    """Bytes per second at which sums over the arrays are formed: a limit, so the best of many.

    Give as many arrays as there are cores, or more: XLA's CPU backend may form a sum on one core, but several at once.
    """
    total = jax.jit(lambda arrays: [jnp.sum(array, axis=-1) for array in arrays])
    jax.block_until_ready(total(arrays))
    times = []
    for _ in range(REPETITIONS):
        begin = time.perf_counter()
        jax.block_until_ready(total(arrays))
        times.append(time.perf_counter() - begin)
    return sum(array.nbytes for array in arrays) / min(times)


def memory_rate(num_bytes: int) -> float:
    """Bytes per second that memory gives, from an array of this size: read on a CPU, read and written elsewhere."""
    if jax.default_backend() == "cpu":
        floats = jnp.ones((num_bytes // 4 // 4096, 4096), jnp.float32)
        return read_rate(jnp.array_split(floats, os.cpu_count() or 1))
    array = jnp.ones((num_bytes // 4,), jnp.float32)
    copies = 8
    # Adding one is a copy that no compiler leaves out; a loop keeps the launch out of the time.
    program = jax.jit(lambda x: lax.fori_loop(0, copies, lambda _, x: lax.optimization_barrier(x) + 1, x))
    jax.block_until_ready(program(array))
    return 2 * array.nbytes * copies / best_seconds(partial(program, array), COPYING)
