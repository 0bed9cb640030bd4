"""A few final tokens for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU): the rounds of plain decoding.

The serial recurrence with the state in registers (pallas_gpu_registers.py): it is read once, taken through the tokens,
and written once, in place.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gated_delta.config import TIMED, GpuConfig, example_token, gpu_tunable
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.padding import masked
from pallas_kernels.gated_delta.pallas_gpu_registers import Registers, with_factors
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.mosaic_gpu import plgpu
from pallas_kernels.tuning import config_for


def _body(q_ref, k_ref, v_ref, factor_ref, beta_ref, state_ref, out_ref, *, scale: float, registers: Registers):
    at, tokens = registers.place(), Tokens(q_ref, k_ref, v_ref, factor_ref, beta_ref)
    place = at.row, at.head, slice(None), at.columns

    def token(t: Array, state: Array) -> Array:
        state, _, out_ref[at.row, t, at.head, at.columns] = registers.step(state, tokens, at, t, scale)
        return state

    state_ref[place] = lax.fori_loop(0, q_ref.shape[1], token, registers.load_state(state_ref.at[place]))


@partial(jax.jit, static_argnames=("head_map", "scale", "interpret", "config"))  # references to GMEM exist under jit
def prefill(
    tokens: Tokens, state: Array, *, head_map: HeadMap, scale: float, interpret: bool = False,
    config: GpuConfig | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Outputs in float32, and the final state in the buffer of `state`; padding rows of the inputs are zero."""
    registers = Registers.of(tokens, config_for(TUNABLE, tokens.sizes, config), head_map, interpret)
    values = jax.ShapeDtypeStruct(tokens.v.shape, jnp.float32)
    state_ref = jax.new_ref(state, memory_space=plgpu.GMEM)
    out = registers.kernel("tokens", _body, len(state), values, scale=scale)(*with_factors(tokens), state_ref)
    return out, state_ref[...]


TUNABLE = gpu_tunable("prefill", example_token, partial(masked(prefill), **TIMED))
