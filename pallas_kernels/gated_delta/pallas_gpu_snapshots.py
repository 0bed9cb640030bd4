"""Recurrent verification with snapshots for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU).

A warpgroup holds a tile of one head's state in registers over all tokens (pallas_gpu_registers.py). The state comes
from the slot that `slot` names; slots are written in place, those that get no state are not touched.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.gated_delta.config import TIMED, GpuConfig, example_slots, gpu_tunable
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.pallas_gpu_registers import Registers, with_factors
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.mosaic_gpu import plgpu
from pallas_kernels.tuning import config_for


def _body(
    slot_ref, n_valid_ref, q_ref, k_ref, v_ref, factor_ref, beta_ref, slots_ref, out_ref,
    *, scale: float, registers: Registers,
):  # fmt: skip
    at, tokens = registers.place(), Tokens(q_ref, k_ref, v_ref, factor_ref, beta_ref)
    n_slots, n_valid = slots_ref.shape[1], n_valid_ref[at.row]

    def token(t: Array, state: Array) -> Array:
        state, _, out_ref[at.row, t, at.head, at.columns] = registers.step(state, tokens, at, t, scale)
        age = n_valid - 1 - t

        @pl.when((age >= 0) & (age < n_slots))
        def _keep():
            slots_ref[at.row, age, at.head, :, at.columns] = state

        return state

    state = registers.load_state(slots_ref.at[at.row, slot_ref[at.row], at.head, :, at.columns])
    lax.fori_loop(0, q_ref.shape[1], token, state)


@partial(jax.jit, static_argnames=("head_map", "scale", "interpret", "config"))  # references to GMEM exist under jit
def verify_snapshots(
    tokens: Tokens, slots: Array, slot: Array, n_valid: Array, *, head_map: HeadMap, scale: float,
    interpret: bool = False, config: GpuConfig | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Outputs in float32 and the slots; padding rows of the inputs are zero."""
    registers = Registers.of(tokens, config_for(TUNABLE, tokens.sizes, config), head_map, interpret)
    values = jax.ShapeDtypeStruct(tokens.v.shape, jnp.float32)
    slots_ref = jax.new_ref(slots, memory_space=plgpu.GMEM)
    out = registers.kernel("verify_snapshots", _body, len(slots), values, scale=scale)(
        slot, n_valid, *with_factors(tokens), slots_ref
    )
    return out, slots_ref[...]


TUNABLE = gpu_tunable("verify_snapshots", example_slots, partial(verify_snapshots, **TIMED))
