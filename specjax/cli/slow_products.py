"""Whether packed weights are multiplied the slow way, which a user would like to know."""

from __future__ import annotations

import jax

from pallas_kernels import dispatch, native, override
from pallas_kernels.matmul import QTensor
from pallas_kernels.matmul.api import dims_of
from pallas_kernels.matmul.implementations import QUANT_MATMUL
from specjax.runtime.model import Model


def slow_products(model: Model, kernels: str | None) -> str | None:
    """Why XLA decodes packed weights of the model; None if kernels read them all, or none are packed.

    Args:
        model: what was loaded.
        kernels: what --kernels says, which holds already.
    """
    leaves = jax.tree.leaves(model.params, is_leaf=lambda leaf: isinstance(leaf, QTensor))
    kinds = {(leaf.format, leaf.layout, leaf.shape): leaf for leaf in leaves if isinstance(leaf, QTensor)}
    if not any(map(_decoded_by_xla, kinds.values())):
        return None
    forced, platform = override.current(), override.current_platform()
    if forced.forces("matmul.packed"):
        return f"{forced.source if kernels is None else f'--kernels {kernels}'} leaves no other way"
    # Elsewhere kernels are measured when an engine is made, which says what came of it.
    return native.reason() if platform == "cpu" else None


def _decoded_by_xla(weight: QTensor) -> bool:
    row = jax.ShapeDtypeStruct((1,) * (weight.ndim - 1) + (weight.width,), "float32")
    try:
        chosen = dispatch.choose(QUANT_MATMUL, None, dims_of(row, weight))
    except ValueError:  # a kernel that is named and does not fit: the product itself says so
        return False
    return chosen.name == "xla_dequant"
