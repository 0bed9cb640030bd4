"""An MLP whose activation is SwiGLU."""

from __future__ import annotations

import flax.linen as nn
from jaxtyping import Array, Float

from pallas_kernels.matmul import swiglu, swiglu_products
from specjax.layers.linear import Linear, SummedLinear, apply_all
from specjax.mesh.shards import exact, total


class SwiGLU(nn.Module):
    """down(swiglu(gate(x), up(x))).

    Attributes:
        hidden: F.
        limit: see `pallas_kernels.matmul.swiglu`.
        summed: whether the products of all parts are added up, where a model is split; if not, the caller does it, by
            `specjax.layers.experts.summed`.
    """

    hidden: int
    limit: float = 0.0
    summed: bool = True

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate, up = Linear(self.hidden, name="gate_proj"), Linear(self.hidden, name="up_proj")
        down = SummedLinear(x.shape[-1], name="down_proj")
        if exact():
            gated, upper = apply_all(x, gate, up)
            return down(swiglu(gated, upper, self.limit))
        matrices = gate.matrix(x.shape[-1]), up.matrix(x.shape[-1]), down.matrix(self.hidden)
        out = swiglu_products(x, *matrices, self.limit)
        return total(out) if self.summed else out
