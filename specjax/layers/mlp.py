"""SwiGLU MLP."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.quant_matmul import QTensor, quant_swiglu
from specjax.layers.linear import Linear, matmul_transposed


def swiglu(gate: Float[Array, "... F"], up: Float[Array, "... F"], limit: float = 0.0) -> Float[Array, "... F"]:
    """silu(gate) * up; with a limit, silu(gate) is at most that and up within plus and minus that. 0 is no limit.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202; limits: `Step3p7MLP` in transformers.
    """
    gate = jax.nn.silu(gate)
    return jnp.minimum(gate, limit) * jnp.clip(up, -limit, limit) if limit else gate * up


class SwiGLU(nn.Module):
    """down(swiglu(gate(x), up(x))).

    Attributes:
        hidden: F.
        limit: see `swiglu`.
    """

    hidden: int
    limit: float = 0.0

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate = Linear(self.hidden, name="gate_proj").matrix(x.shape[-1])
        up = Linear(self.hidden, name="up_proj").matrix(x.shape[-1])
        down = Linear(x.shape[-1], name="down_proj").matrix(self.hidden)
        if isinstance(gate, QTensor) and isinstance(up, QTensor) and isinstance(down, QTensor):
            return quant_swiglu(x, gate, up, down, limit=self.limit)
        hidden = swiglu(matmul_transposed(x, gate), matmul_transposed(x, up), self.limit)
        return matmul_transposed(hidden, down)
