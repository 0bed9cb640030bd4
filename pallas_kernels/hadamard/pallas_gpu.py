"""The transform for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU): one vector per thread, butterflies in registers.

A thread takes its vector in blocks, as many values as its registers hold, and writes them out transformed; then it
applies the outer factor to what it wrote, in the same manner. No value passes between threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.block_sizes import BlockSizes, power_of_two
from pallas_kernels.hadamard.butterflies import butterflies
from pallas_kernels.hadamard.example import SHAPES, example
from pallas_kernels.mosaic_gpu import WARPGROUP, kernel_options, load, plgpu
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

MAX_WIDTH = 4096
MAX_BLOCK = 128


@dataclass(frozen=True)
class Config(BlockSizes):
    """block: values of a vector in registers at a time, a power of two of at most 128; two passes where N is more."""

    block: int = power_of_two(MAX_BLOCK)


def unfit(dims: Dims) -> str | None:
    """Why a width cannot be served, or None."""
    return f"N={dims['N']} is over {MAX_WIDTH}" if dims["N"] > MAX_WIDTH else None


def heuristic(dims: Dims) -> Config:
    """Whole vectors up to a width of 128. Wider ones are split into two factors of similar size."""
    width = dims["N"]
    return Config(width if width <= MAX_BLOCK else 1 << (width.bit_length() // 2))


def candidates(dims: Dims) -> list[Config]:
    """All configs with which both factors fit into registers."""
    width = dims["N"]
    return [Config(1 << k) for k in range(3, 8) if 1 << k <= width <= MAX_BLOCK << k]


def _body(
    x_ref: Any, before_ref: Any, after_ref: Any, out_ref: Any, *, block: int, scale: float, interpreted: bool
) -> None:
    outer_blocks = x_ref.shape[1] // block
    rows = pl.ds(lax.axis_index("rows") * WARPGROUP, WARPGROUP)
    one_each = plgpu.Layout.WG_STRIDED((WARPGROUP,), vec_size=1)  # one value for each thread

    def values(ref: Any, n: Any) -> Array:
        return load(ref.at[rows, n], one_each, interpreted=interpreted).astype(jnp.float32)

    def inner(index: Any, carry: None) -> None:
        numbers = [index * block + k for k in range(block)]
        pieces = butterflies([values(x_ref, n) * before_ref[n] for n in numbers])
        for n, piece in zip(numbers, pieces, strict=True):
            out_ref[rows, n] = piece * (scale if outer_blocks > 1 else scale * after_ref[n])

    def outer(offset: Any, carry: None) -> None:
        numbers = [offset + k * block for k in range(outer_blocks)]
        for n, piece in zip(numbers, butterflies([values(out_ref, n) for n in numbers]), strict=True):
            out_ref[rows, n] = piece * after_ref[n]

    lax.fori_loop(0, outer_blocks, inner, None)
    if outer_blocks > 1:
        lax.fori_loop(0, block, outer, None)


@partial(jax.jit, static_argnames=("config", "interpret"))  # references to GMEM exist under jit
def transform(
    x: Array, before: Array | None, after: Array | None, *, config: Config | None = None, interpret: bool = False
) -> Array:
    """Transform each row of x, [..., N]; the result is float32."""
    width = x.shape[-1]
    rows = x.size // width
    block = min(config_for(TUNABLE, {"N": width, "rows": rows}, config).block, width)
    given = jnp.pad(x.reshape(rows, width), ((0, -rows % WARPGROUP), (0, 0)))

    def factors(values: Array | None) -> Array:
        return jnp.ones(width) if values is None else values.astype(jnp.float32)

    out = pl.kernel(
        partial(_body, block=block, scale=width**-0.5, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct(given.shape, jnp.float32),
        mesh=plgpu.Mesh(grid=(given.shape[0] // WARPGROUP,), grid_names=("rows",)),
        name="walsh_hadamard",
        **kernel_options(interpreted=interpret),
    )(given, factors(before), factors(after))
    return out[:rows].reshape(x.shape)


TUNABLE = Tunable(
    "hadamard",
    "pallas_gpu",
    Config,
    heuristic,
    candidates,
    SHAPES,
    example,
    partial(transform, before=None, after=None),
)
