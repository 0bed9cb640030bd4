"""Several products at once. Each is what `quant_matmul` alone gives, to the bit where native kernels compute both.

On CPUs a call costs as much as some hundred kilobytes of weights; the matrices of a layer are not much larger. On GPUs
a small matrix cannot fill the device, and each kernel takes time to launch.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.derivatives import with_derivatives_of
from pallas_kernels.matmul import cpu_native
from pallas_kernels.matmul.api import check, dims_of, quant_matmul
from pallas_kernels.matmul.implementations import QUANT_MATMUL, TOGETHER
from pallas_kernels.matmul.qtensor import Activations, QTensor
from pallas_kernels.matmul.swiglu import swiglu


def quant_matmuls(
    x: Float[Array, "... K"],
    weights: Sequence[QTensor],
    *,
    act: Activations | None = None,
    dtype: DTypeLike | None = None,
    impl: str | None = None,
) -> list[Float[Array, "... N"]]:
    """x @ weight.T for each of some matrices [N, K], as `quant_matmul` computes them.

    Raises:
        ValueError: as `quant_matmul`.
    """
    check("quant_matmuls", x, {f"weights[{i}]": weight for i, weight in enumerate(weights)}, None, act)
    dtype = x.dtype if dtype is None else dtype
    return [out.astype(dtype) for out in _together(x, weights, None, act, impl)]


def quant_swiglu(
    x: Float[Array, "... K"],
    gate: QTensor,
    up: QTensor,
    down: QTensor,
    *,
    limit: float = 0.0,
    index: Int[Array, " B"] | None = None,
    act: Activations | None = None,
    impl: str | None = None,
) -> Float[Array, "... N"]:
    """down(silu(gate(x)) * up(x)) in x's dtype.

    Args:
        x: the activations.
        gate, up, down: matrices [F, K], [F, K] and [N, F], or stacks of them with an index, as for `quant_matmul`.
        limit: see `swiglu`.
        index, act, impl: see `quant_matmul`.

    Raises:
        ValueError: as `quant_matmul`, matrices or stacks that do not fit together, or a limit below zero.
    """
    check("quant_swiglu", x, {"gate": gate, "up": up}, index, act)
    if gate.shape != up.shape or (*down.shape[:-2], down.width) != gate.shape[:-1]:
        raise ValueError(
            "quant_swiglu: gate and up are [F, K] and down is [N, F], or stacks of as many of each; "
            f"got {gate.shape}, {up.shape}, {down.shape}"
        )
    if limit < 0:
        raise ValueError(f"quant_swiglu: limit is {limit}; accepted: numbers above 0, or 0 for none")

    def by_products(x: Array, gate: QTensor, up: QTensor, down: QTensor, index: Array | None) -> Array:
        gated, upper = (out.astype(x.dtype) for out in _together(x, [gate, up], index, act, impl))
        return quant_matmul(swiglu(gated, upper, limit), down, index=index, act=act, impl=impl)

    def natively(x: Array, gate: QTensor, up: QTensor, down: QTensor, index: Array | None) -> Array:
        return cpu_native.quant_swiglu(x, gate, up, down, act or gate.act, index, limit).astype(x.dtype)

    native = _native(x, [gate, up, down], act, impl)
    run = with_derivatives_of(by_products, natively) if native else by_products
    return run(x, gate, up, down, index)


def _together(
    x: Array, weights: Sequence[QTensor], index: Array | None, act: Activations | None, impl: str | None
) -> list[Array]:
    """The products in float32. What multiplies with the largest matrix takes along others that it could take alone."""
    if not weights:
        return []
    dims = [dims_of(x, weight) for weight in weights]
    chosen = [dispatch.choose(QUANT_MATMUL, impl, of) for of in dims]
    largest = max(range(len(weights)), key=lambda i: weights[i].rows)
    leading, rounding = chosen[largest], act or weights[largest].act
    outs: dict[int, Array] = {}
    if x.size and leading.name in TOGETHER:
        joined = [
            i
            for i, weight in enumerate(weights)
            if rounding == (act or weight.act)
            and (chosen[i] is leading or dispatch.could_take(QUANT_MATMUL, leading, dims[i]))
        ]
        outs = dict(zip(joined, TOGETHER[leading.name](x, [weights[i] for i in joined], rounding, index), strict=True))
    return [
        outs[i] if i in outs else quant_matmul(x, weight, index=index, act=act, dtype=jnp.float32, impl=impl)
        for i, weight in enumerate(weights)
    ]


def _native(x: Array, weights: Sequence[QTensor], act: Activations | None, impl: str | None) -> bool:
    """Whether the native kernels can multiply with every weight, with the same rounding for all."""
    chosen = {dispatch.choose(QUANT_MATMUL, impl, dims_of(x, weight)).name for weight in weights}
    return chosen == {"cpu_native"} and (act is not None or len({weight.act for weight in weights}) == 1)
