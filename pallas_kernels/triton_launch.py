"""What the Triton kernels share: calls of them through jax-triton, and in Triton's interpreter on a CPU.

They serve NVIDIA GPUs that Mosaic GPU does not know: those before Hopper, from compute capability 8.0 on. Pallas has a
backend for Triton as well, but jax 0.11 calls it deprecated and cannot lower it without a GPU. The packages triton and
jax_triton are optional (the extra gpu-triton) and imported when a kernel is called.

The parameters of a kernel are its inputs, the arrays that it changes in place, these once more, its results, and
constants. Those named again are not used: jax-triton before 0.4 passes such a buffer once as an input and once as a
result, later releases pass it once.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from pallas_kernels.capability import device_capability, older_than, times_ten

OLDEST = 80
"""The compute capability, times ten, that programs are made for where no GPU tells its own. A program is machine code
when it is loaded: one for 8.0 runs on GPUs of capability 8.x, and on no others."""


def missing(*, interpreted: bool) -> str | None:
    """Why Triton kernels cannot be called, or None."""
    for package in ("triton",) if interpreted else ("triton", "jax_triton"):
        if importlib.util.find_spec(package) is None:
            return f"needs the package {package} (pip install 'specjax[gpu-triton]')"
    return None if interpreted else older_than(OLDEST)


def ptx_version(capability: int) -> int:
    """The version of PTX, times ten, to hand kernels over in: one that every CUDA reads that JAX takes.

    The assembler is CUDA's. Triton left alone writes for its own, which may be newer, for Hopper above all; jax-triton
    before 0.4 leaves it alone.
    """
    return 88 if capability <= 90 else 90


def power_of_two(n: int) -> int:
    """The first that is not less than n: blocks of Triton have such sizes."""
    return 1 << (n - 1).bit_length()


def bfloat16_parts(x: Array, count: int) -> Array:
    """[count, ...] in bfloat16: x in its first 8 bits, what is left in its first 8, and so on; as many as are wanted.

    Three of them add up to any float32, two to any float16, but for what underflows. Products of them are exact in
    float32, and tensor cores are fast at them.
    """
    parts, rest = [], x.astype(jnp.float32)
    for _ in range(count):
        # Converting there and back would be left out where more precision than asked for is allowed.
        part = lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7)
        parts.append(part.astype(jnp.bfloat16))
        rest = jnp.where(jnp.isfinite(part), rest - part, 0)
    return jnp.stack(parts)


def launch(
    kernel: Any,
    inputs: Sequence[Array],
    changed: Sequence[Array],
    results: Sequence[jax.ShapeDtypeStruct],
    *,
    grid: tuple[int, ...],
    warps: int,
    stages: int = 1,
    interpret: bool,
    **constants: Any,
) -> list[Array]:
    """The arrays that the kernel changed, in their own buffers if the program needs them no more, and its results.

    Args:
        kernel: a function under `triton.jit` in a module of its own; see above for its parameters.
        inputs: arrays that it reads.
        changed: arrays that it reads and writes.
        results: shapes and types of what it writes.
        grid: numbers of programs along up to three axes.
        warps: of a program.
        stages: of its pipelined loops.
        interpret: run it on the host, program after program.
        constants: by the names of its parameters.
    """
    # numpy's numbers mean something to Triton's interpreter, but not to its compiler.
    constants = {name: x.item() if isinstance(x, np.generic) else x for name, x in constants.items()}
    if interpret:
        return _interpreted(kernel, inputs, changed, results, grid, constants)
    capability = times_ten(device_capability() or "") or OLDEST
    options = {"grid": grid, "num_warps": warps, "num_stages": stages, "compute_capability": capability, **constants}
    return _compiled(list(inputs), list(changed), kernel, tuple(results), tuple(options.items()))


@partial(jax.jit, static_argnums=(2, 3, 4))  # references exist under jit
def _compiled(
    inputs: list[Array],
    changed: list[Array],
    kernel: Any,
    results: tuple[jax.ShapeDtypeStruct, ...],
    items: tuple[tuple[str, Any], ...],
) -> list[Array]:
    import jax_triton

    options: dict[str, Any] = {"kernel": kernel, "name": kernel.fn.__name__, **dict(items)}
    if "out_type" in inspect.signature(jax_triton.triton_call).parameters:  # since 0.4
        references = [jax.new_ref(x) for x in changed]
        given = [*inputs, *references, *(0 for _ in references)]
        # Triton warns if it is not told about fusion.
        version = ptx_version(options["compute_capability"])
        options["backend_options"] = {"enable_fp_fusion": True, "ptx_version": version}
        made = jax_triton.triton_call(*given, out_type=list(results), **options)
        return [*(reference[...] for reference in references), *made]
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in changed]
    options["input_output_aliases"] = {len(inputs) + i: i for i in range(len(changed))}
    return list(jax_triton.triton_call(*inputs, *changed, out_shape=[*shapes, *results], **options))


def _interpreted(
    kernel: Any,
    inputs: Sequence[Array],
    changed: Sequence[Array],
    results: Sequence[jax.ShapeDtypeStruct],
    grid: tuple[int, ...],
    constants: dict[str, Any],
) -> list[Array]:
    from pallas_kernels import triton_interpreter

    shapes = [*(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in changed), *results]
    name, made = (kernel.fn.__module__, kernel.fn.__name__), [(x.shape, x.dtype) for x in results]

    def run(inputs: Sequence[Any], changed: Sequence[Any]) -> list[np.ndarray]:
        read, written = ([np.asarray(x) for x in group] for group in (inputs, changed))
        return triton_interpreter.run(name, read, written, made, grid, constants)

    return jax.pure_callback(run, shapes, list(inputs), list(changed), vmap_method="sequential")
