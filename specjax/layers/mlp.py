"""An MLP whose activation is SwiGLU."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array, Float

from pallas_kernels.matmul import swiglu_products
from specjax.layers.linear import Linear
from specjax.mesh.shards import total


class SwiGLU(nn.Module):
    """down(swiglu(gate(x), up(x))).

    Attributes:
        hidden: F.
        limit: see `pallas_kernels.matmul.swiglu`.
        summed: whether the products of all parts are added up, where a model is split; if not, the caller does it.
    """

    hidden: int
    limit: float = 0.0
    summed: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate = Linear(self.hidden, name="gate_proj").matrix(x.shape[-1])
        up = Linear(self.hidden, name="up_proj").matrix(x.shape[-1])
        down = Linear(x.shape[-1], name="down_proj").matrix(self.hidden)
        out = swiglu_products(x, gate, up, down, self.limit)
        return total(out) if self.summed else out
