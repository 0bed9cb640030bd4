"""What the benchmarks say of the machine: its name, and how fast it reads memory."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

REPETITIONS = 10


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
