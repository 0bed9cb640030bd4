"""The reference: decode all values, round the other factor as asked for, and multiply once."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pallas_kernels.matmul.layouts import dequantize
from pallas_kernels.matmul.qtensor import Activations, QTensor

GROUP = 32
"""Values that share a scale when activations are rounded to integers."""

LARGEST = {"a8": 127, "a16": 127 * 256}
"""The integer that the largest magnitude of a group becomes. For 16 bits it is such that the integer splits into two
signed bytes."""


def round_activations(x: Float[Array, "... K"], act: Activations) -> Float[Array, "... K"]:
    """x rounded to multiples of its group's largest magnitude / LARGEST[act]."""
    groups = x.astype(jnp.float32).reshape(*x.shape[:-1], -1, GROUP)
    scale = jnp.max(jnp.abs(groups), axis=-1, keepdims=True) / LARGEST[act]
    codes = jnp.round(groups / jnp.where(scale == 0, 1, scale))
    return (codes * scale).reshape(x.shape)


def quant_matmul(x: Float[Array, "... K"], weight: QTensor, act: Activations | None = None) -> Float[Array, "... N"]:
    """x @ weight.T in float32; `act` None rounds nothing."""
    rounded = x.astype(jnp.float32) if act is None else round_activations(x, act)
    return jnp.einsum("...k,nk->...n", rounded, dequantize(weight), precision="highest")
