"""Few rows times a weight on this machine's CPU: the forms XLA offers, as fractions of the read limit.

A decode step multiplies every weight with a handful of rows; reading the weight once is the limit. The limit is taken
in the same run, before and between the products, as the best rate at which sums over the same weight are formed.

    python benchmarks/few_row_matmul.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from machine import description, read_rate

from pallas_kernels.matmul import float_matmul


def best_seconds(run: Callable[[], jax.Array], repetitions: int) -> float:
    """Shortest time of a call that ends when its result is there; the limit is a best as well."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repetitions):
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
    return min(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=8192)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--repetitions", type=int, default=25)
    args = parser.parse_args()

    weight = jax.random.normal(jax.random.key(0), (args.outputs, args.inputs))
    forms = {
        "x @ W": (jax.jit(lambda x, w: x @ w), weight.T.copy()),
        "x . W^T": (jax.jit(lambda x, w: jnp.einsum("mk,nk->mn", x, w)), weight),
        "used here": (jax.jit(float_matmul), weight),
    }
    pieces = jnp.array_split(weight, os.cpu_count() or 1)
    limit, times = read_rate(pieces), {}
    for rows in (1, 2, 4, 6, 8, 16):
        x = jax.random.normal(jax.random.key(rows), (rows, args.inputs))
        times[rows] = [best_seconds(partial(form, x, w), args.repetitions) for form, w in forms.values()]
        limit = max(limit, read_rate(pieces))
    print(f"{description()}, {args.outputs} x {args.inputs} float32")
    print(f"fractions of the read limit, {limit / 1e9:.1f} GB/s")
    print(f"{'rows':>5} " + " ".join(f"{name:>10}" for name in forms))
    for rows, seconds in times.items():
        print(f"{rows:>5} " + " ".join(f"{weight.nbytes / each / limit:>10.2f}" for each in seconds))


if __name__ == "__main__":
    main()
