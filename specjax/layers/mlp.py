"""SwiGLU MLP."""

from __future__ import annotations

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from specjax.layers.linear import Linear


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)).

    Attributes:
        hidden: F.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
    """

    hidden: int

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        gate = Linear(self.hidden, name="gate_proj")(x)
        up = Linear(self.hidden, name="up_proj")(x)
        return Linear(x.shape[-1], name="down_proj")(jax.nn.silu(gate) * up)
