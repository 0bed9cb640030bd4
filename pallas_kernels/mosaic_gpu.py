"""What the Mosaic GPU kernels share: loads with or without register layouts, and the options of a kernel."""

from __future__ import annotations

from typing import Any

import jax
from jax import Array
from jax.experimental.pallas import mosaic_gpu as plgpu

WARPGROUP = 128
"""Threads of a warpgroup, which is what a kernel's program runs on."""


def load(ref: Any, layout: Any, *, interpreted: bool) -> Array:
    """What a reference holds, in registers of a layout; the interpreter knows no layouts."""
    if interpreted:
        return ref[...]
    # jax 0.10 wants an index beside the reference, 0.11 deprecates it.
    index: tuple[Any, ...] = ((),) if jax.__version_info__ < (0, 11) else ()
    return plgpu.load(ref, *index, layout=layout, optimized=False)


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
