"""Products with quantized matrices on this machine's CPU, as fractions of what its memory and its arithmetic allow.

A chain of matrices, larger together than the caches, is multiplied with some rows. Few rows are limited by how fast
these bytes can be read, many by how fast bytes can be multiplied (known for AVX-512 VNNI and AVX2): activations of 8
bits need one such product for each product, those of 16 bits two. (With AVX2 alone the kernels need two wherever codes
have 8 bits.) Both limits are taken in the same run, in turns with the products, as the best rates at which sums over
floats are formed and at which a loop of nothing but sums of byte products runs. The last columns give how many times
longer the same chain takes with float32 weights in XLA.

    python benchmarks/cpu_quant.py
    python benchmarks/cpu_quant.py --isa avx512vnni amx
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from arithmetic_rate import OF_BYTES
from limits import Limit
from machine import description

from pallas_kernels import native
from pallas_kernels.matmul import FORMATS, QTensor, explain, float_matmul, from_blocks, prepare, quant_matmul
from pallas_kernels.native import library

ROWS = (1, 2, 4, 8, 16, 64)


def random_matrix(name: str, size: int, seed: int) -> QTensor:
    """A matrix [size, size] of random bytes below 64, which are small finite numbers wherever scales stand."""
    shape = (size, FORMATS[name].row_bytes(size))
    blocks = np.random.default_rng(seed).integers(0, 64, shape, np.uint8)
    return prepare(from_blocks(jnp.asarray(blocks), name))


def seconds(run: Callable[[], object]) -> float:
    """Of one call, its result awaited, after another one: what ran before leaves caches and clocks in its own state."""
    jax.block_until_ready(run())
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


Product = Callable[[jax.Array, object], jax.Array]


def product_by(isa: str | None, act: str) -> Product:
    """The quantized product, by kernels for one instruction set; None: by those that are chosen without a word."""

    def product(x: jax.Array, weight: object) -> jax.Array:
        if isa is not None:
            os.environ[library.ISA_VARIABLE] = isa  # is looked at while the program is traced
        return quant_matmul(x, weight, act=act)

    return product


def chain_times(
    products: dict[str, Product], chain: list, size: int, repetitions: int, limit: Limit
) -> dict[str, dict[int, float]]:
    """Shortest time for each product and number of rows. All of them take turns."""

    def chained(product: Product) -> Callable[[jax.Array, list], jax.Array]:
        def step(x: jax.Array, chain: list) -> jax.Array:
            for weight in chain:
                x = product(x, weight) * jnp.float32(1e-3)
            return x

        return jax.jit(step)

    steps = {name: chained(product) for name, product in products.items()}
    inputs = {rows: jax.random.normal(jax.random.key(rows), (rows, size)) for rows in ROWS}
    best = {name: dict.fromkeys(ROWS, np.inf) for name in steps}
    for step in steps.values():
        for x in inputs.values():
            jax.block_until_ready(step(x, chain))
    for _ in range(repetitions):
        limit.measure()
        for name, step in steps.items():
            for rows, x in inputs.items():
                best[name][rows] = min(best[name][rows], seconds(lambda step=step, x=x: step(x, chain)))
    return best


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="Q8_0,Q4_0,Q4_K,Q6_K", help="comma-separated; default: %(default)s")
    parser.add_argument("--size", type=int, default=4096, help="inputs and outputs of each matrix")
    parser.add_argument("--matrices", type=int, default=12)
    parser.add_argument(
        "--isa", nargs="+", default=[None], metavar="SET", help="of the kernels, such as avx512vnni amx"
    )
    parser.add_argument("--repetitions", type=int, default=25)
    args = parser.parse_args()

    print(f"{description()}, {args.matrices} matrices {args.size} x {args.size}")
    print(native.reason() or f"native kernels: {native.instruction_set()}")
    limit = Limit(OF_BYTES)
    floats = [jnp.ones((args.size, args.size), jnp.float32) / args.size for _ in range(args.matrices)]
    xla = chain_times({"XLA": float_matmul}, floats, args.size, args.repetitions // 4 + 1, limit)["XLA"]
    del floats
    results = []
    for name in args.formats.split(","):
        chain = [random_matrix(name, args.size, seed) for seed in range(args.matrices)]
        size = sum(weight.nbytes for weight in chain)
        products = {f"{act} {isa or ''}": product_by(isa, act) for act in ("a8", "a16") for isa in args.isa}
        for product, times in chain_times(products, chain, args.size, args.repetitions, limit).items():
            byte_products = args.size**2 * args.matrices * (2 if product.startswith("a16") else 1)
            results.append((f"{name} {product}", size, byte_products, times))
    print(explain(jnp.ones((1, args.size)), chain[0]))

    print(f"\nlimits: {limit.reads / 1e9:.1f} GB/s, {limit.products / 1e9:.0f} billion products of bytes a second")
    header = " ".join(f"{rows:>6}" for rows in ROWS)
    print(f"{'':<22} fraction of the limit at rows {'':>11} over XLA float32 at rows")
    print(f"{'':<22} {header}   {header}")
    for name, size, products, times in results:
        least = {rows: limit.seconds(size, rows * products) for rows in ROWS}
        fractions = " ".join(f"{least[rows] / times[rows]:>6.2f}" for rows in ROWS)
        ratios = " ".join(f"{xla[rows] / times[rows]:>6.1f}" for rows in ROWS)
        print(f"{name:<22} {fractions}   {ratios}")


if __name__ == "__main__":
    main()
