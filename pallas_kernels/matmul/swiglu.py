"""The activation of SwiGLU layers, with the limits that some models set."""

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float


def swiglu(gate: Float[Array, "... F"], up: Float[Array, "... F"], limit: float = 0.0) -> Float[Array, "... F"]:
    """silu(gate) * up; with a limit, silu(gate) is at most that and up within plus and minus that. 0 is no limit.

    Source: Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202; limits: `Step3p7MLP` in transformers.
    """
    gate = jax.nn.silu(gate)
    return jnp.minimum(gate, limit) * jnp.clip(up, -limit, limit) if limit else gate * up
