"""What the Mosaic GPU kernels share: loads with or without register layouts, products, and the options of a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.at_first_use import AtFirstUse

if TYPE_CHECKING:
    from jax.experimental.pallas import mosaic_gpu as plgpu
else:
    plgpu = AtFirstUse("jax.experimental.pallas.mosaic_gpu")

WARPGROUP = 128
"""Threads of a warpgroup, which is what a kernel's program runs on."""
SHARED_MEMORY = 227 * 1024
"""Bytes that a program can have on a Hopper GPU."""
MMA_ROWS = 64
"""Rows of the smallest product of a warpgroup on tensor cores (wgmma)."""


def load(ref: Any, layout: Any, *, interpreted: bool) -> Array:
    """What a reference holds, in registers of a layout; the interpreter knows no layouts."""
    if interpreted:
        return ref[...]
    # jax 0.10 wants an index beside the reference, 0.11 deprecates it.
    index: tuple[Any, ...] = ((),) if jax.__version_info__ < (0, 11) else ()
    return plgpu.load(ref, *index, layout=layout, optimized=False)


def laid_out(x: Array, layout: Any, *, interpreted: bool) -> Array:
    """A value in registers of a layout."""
    return x if interpreted else plgpu.layout_cast(x, layout)


def tiled_memory(shape: tuple[int, ...], dtype: Any) -> Any:
    """Shared memory for matrices of 16-bit numbers, in the order in which wgmma reads them best.

    The last axis is a multiple of 16, the one before of 8.
    """
    swizzle = plgpu.find_swizzle(16 * shape[-1])
    transforms = (plgpu.TilingTransform((8, swizzle // 2)), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, dtype, transforms=transforms)


def product(left_ref: Any, right_ref: Any, *, interpreted: bool) -> Array:
    """[M, N] float32: left [M, K] times the transpose of right [N, K], both in `tiled_memory`, on tensor cores.

    The interpreter has no wgmma of transposed references: there, and in `add_product`, it is a product of XLA's.
    """
    if interpreted:
        return _dot(_read(left_ref), _read(right_ref), 1)

    def multiply(acc_ref: Any) -> Array:
        plgpu.wgmma(acc_ref, left_ref, right_ref.T)
        return acc_ref[...]

    return pl.run_scoped(multiply, plgpu.ACC((left_ref.shape[0], right_ref.shape[0])))


def add_product(sums: Array, left: Array, right_ref: Any, *, interpreted: bool) -> Array:
    """sums [M, N] float32 plus left [M, K], in registers, times right [K, N] in `tiled_memory`, on tensor cores."""
    if interpreted:
        return sums + _dot(left, _read(right_ref), 0)
    # The accumulator begins with the sums: there is no room for a product beside them.
    return pl.run_state(lambda acc_ref: plgpu.wgmma(acc_ref, left, right_ref))(plgpu.ACC.init(sums))


def _read(ref: Any) -> Array:
    # wgmma reads through the same proxy through which copies write; to the interpreter this is another one.
    value = ref[...]
    plgpu.commit_smem()
    return value


def _dot(left: Array, right: Array, axis: int) -> Array:
    # In float32 the products of 16-bit numbers are exact, as on tensor cores.
    left, right = left.astype(jnp.float32), right.astype(jnp.float32)
    return lax.dot_general(left, right, (((1,), (axis,)), ((), ())), precision=lax.Precision.HIGHEST)


def kernel_options(*, interpreted: bool) -> dict[str, Any]:
    """What a kernel whose layouts are all stated gives to `pl.kernel`.

    Under the other semantics layouts are inferred, which takes minutes for an unrolled program.
    """
    return {
        "compiler_params": plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane),
        "interpret": interpreter() if interpreted else False,
    }


def interpreter() -> Any:
    """What `interpret` of a kernel is for running it on a CPU."""
    # jax 0.11 has it as plgpu.InterpretGPUParams, jax 0.10 only here.
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams()
