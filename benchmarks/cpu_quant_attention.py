"""Attention of one and of four tokens over long KV caches of every type on this machine's CPU.

Some layers' caches, larger together than the processor's, are attended over one after the other, in turns and in an
order drawn anew each time, by the native kernels and by XLA: in the form that is used without native kernels (quantized
caches are decoded by tiles), and, where they are quantized, by decoding the whole cache first, as one would write it
down. The limit is how fast the bytes of the caches can be read, or how fast floats can be multiplied (known for AVX2
and AVX-512), whichever takes longer: each query is multiplied with each key, and each weight with each value. Both
rates are taken in the same run. The error is that of all layers together, against XLA's products of floats. With
several instruction sets (--isa) the native kernels of each take turns: columns are those of the last one, and the last
columns say how much faster than the others it is.

    python benchmarks/cpu_quant_attention.py
    python benchmarks/cpu_quant_attention.py --isa avx512vnni amx --rows 1 4 16 --types q8_0,q4_0
"""

from __future__ import annotations

import argparse
import os
import random
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from arithmetic_rate import OF_FLOATS
from limits import Limit
from machine import description

from pallas_kernels import cache_attention, native
from pallas_kernels.kv_formats import FORMATS, KVStore
from pallas_kernels.native import library


def random_store(shape: tuple[int, ...], name: str, seed: int) -> KVStore:
    """Random vectors; a stretch of slots is repeated, which changes nothing of the time."""
    part = jax.random.normal(jax.random.key(seed), (shape[0], min(256, shape[1]), *shape[2:]))
    whole = jax.jit(partial(KVStore.of, format=name))(part)
    return whole.map(
        lambda x: jnp.asarray(
            np.resize(np.asarray(x).swapaxes(0, 1), (shape[1], shape[0], *x.shape[2:])).swapaxes(0, 1)
        )
    )


DECODED = "decoded first"
"""The way of XLA that decodes whole caches."""


@partial(jax.jit, static_argnames=("impl", "isa"))
def attend_all(
    q: jax.Array, layers: list[tuple[KVStore, KVStore]], positions: jax.Array, impl: str, isa: str | None
) -> jax.Array:
    """Through all layers, the output of one being the queries of the next."""
    if isa is not None:
        os.environ[library.ISA_VARIABLE] = isa  # is looked at while the program is traced
    for stores in layers:
        k, v = (KVStore.of(store.values(), "f32") for store in stores) if impl == DECODED else stores
        named = "xla_floats" if impl == DECODED else impl
        q = q + cache_attention.attend(q, k, v, positions, scale=q.shape[-1] ** -0.5, impl=named)
    return q


def seconds(*args: object) -> float:
    """Of one call, its result awaited."""
    begin = time.perf_counter()
    jax.block_until_ready(attend_all(*args))
    return time.perf_counter() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", default=",".join(FORMATS), help="comma-separated; default: %(default)s")
    parser.add_argument("--slots", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4], help="tokens of a call; default: 1 4")
    parser.add_argument(
        "--isa", nargs="+", default=[None], metavar="SET", help="of the native kernels, such as avx512vnni amx"
    )
    parser.add_argument("--repetitions", type=int, default=15)
    args = parser.parse_args()

    shape = (1, args.slots, args.kv_heads, args.width)
    print(f"{description()}; {args.layers} layers, {args.heads} query heads, caches [B, S, G, N] = {shape}")
    print(native.reason() or f"native kernels: {args.isa[-1] or native.instruction_set()}")
    limit, results, order = Limit(OF_FLOATS), [], random.Random(0)
    products = {rows: 2 * args.layers * rows * args.heads * args.slots * args.width for rows in args.rows}
    natives = [("cpu_native", isa) for isa in args.isa]
    for name in args.types.split(","):
        layers = [tuple(random_store(shape, name, 2 * i + j) for j in range(2)) for i in range(args.layers)]
        size = sum(part.nbytes for part in jax.tree.leaves(layers))
        forms = [(form, None) for form in (("xla_tiles", DECODED) if FORMATS[name].quantized else ("xla_floats",))]
        best = {(impl, rows): np.inf for impl in (*natives, *forms) for rows in args.rows}
        calls = {
            (impl, rows): (
                jax.random.normal(jax.random.key(rows), (1, rows, args.heads, args.width)),
                layers,
                jnp.arange(args.slots - rows, args.slots, dtype=jnp.int32)[None],
                *impl,
            )
            for impl, rows in best
        }
        outputs = {key: np.asarray(attend_all(*call)) for key, call in calls.items()}
        native_output, floats = (outputs[impl, args.rows[-1]] for impl in (natives[-1], forms[0]))
        error = np.linalg.norm(native_output - floats) / np.linalg.norm(floats)
        for turn in range(args.repetitions):
            limit.measure()
            for key in order.sample(list(calls), len(calls)):
                if key[0] in natives or turn % 5 == 0:
                    seconds(*calls[key])  # not timed: a call is slower after harder work, such as that measurement
                    best[key] = min(best[key], seconds(*calls[key]))
        results.append((name, size, best, forms, error))

    print(f"\nlimits: {limit.reads / 1e9:.1f} GB/s, {limit.products / 1e9:.0f} billion products of floats a second")
    rows_named = ", ".join(map(str, args.rows))
    print(f"{'type':<8} {'bits':>6} | ms at {rows_named} rows | of the limit | error | times as fast as")
    for name, size, best, forms, error in results:
        native_times = [best[natives[-1], rows] for rows in args.rows]
        bits = FORMATS[name].bits_per_value(args.width)
        milliseconds = " ".join(f"{1e3 * t:>7.2f}" for t in native_times)
        least = [limit.seconds(size, products[rows]) for rows in args.rows]
        shares = " ".join(f"{limit_time / t:>8.2f}" for limit_time, t in zip(least, native_times, strict=True))
        ratios = {
            isa or form: [best[(form, isa), rows] / t for rows, t in zip(args.rows, native_times, strict=True)]
            for form, isa in (*forms, *natives[:-1])
        }
        others = "; ".join(f"{other}: " + " ".join(f"{x:.1f}" for x in ratio) for other, ratio in ratios.items())
        print(f"{name:<8} {bits:>6.3f} | {milliseconds} | {shares}  | {error:.0e} | {others}")


if __name__ == "__main__":
    main()
