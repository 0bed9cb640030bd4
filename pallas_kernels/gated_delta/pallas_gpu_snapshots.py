"""Recurrent verification with snapshots for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU).

A warpgroup holds a tile of one head's state in registers over all tokens (pallas_gpu_registers.py). The state comes
from the slot that `slot` names; slots are written in place, those that get no state are not touched.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_delta.config import GpuConfig, example_slots, gpu_tunable
from pallas_kernels.gated_delta.heads import HeadMap, key_head
from pallas_kernels.gated_delta.pallas_gpu_registers import Registers, kernel_options
from pallas_kernels.tuning import config_for


def _body(
    slot_ref, n_valid_ref, q_ref, k_ref, v_ref, factor_ref, beta_ref, slots_ref, out_ref,
    *, key_head_of: Callable[[Any], Any], scale: float, registers: Registers,
):  # fmt: skip
    row, head, tile = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("tile")
    key_head = key_head_of(head)
    columns = pl.ds(tile * registers.columns, registers.columns)
    n_slots = slots_ref.shape[1]
    n_valid = n_valid_ref[row]

    def token(t: Array, state: Array) -> Array:
        q = registers.load_column(q_ref.at[row, t, key_head])
        k = registers.load_column(k_ref.at[row, t, key_head])
        v = registers.load_row(v_ref.at[row, t, head, columns])
        factor, beta = factor_ref[row, t, head], beta_ref[row, t, head]
        state, _, out_ref[row, t, head, columns] = registers.step(state, q, k, v, factor, beta, scale)
        age = n_valid - 1 - t

        @pl.when((age >= 0) & (age < n_slots))
        def _keep():
            slots_ref[row, age, head, :, columns] = state

        return state

    state = registers.load_state(slots_ref.at[row, slot_ref[row], head, :, columns])
    lax.fori_loop(0, q_ref.shape[1], token, state)


@partial(jax.jit, static_argnames=("head_map", "scale", "interpret", "config"))  # references to GMEM exist under jit
def verify_snapshots(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    slots: Array,
    slot: Array,
    *,
    n_valid: Array,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: GpuConfig | None = None,
) -> tuple[Array, Array]:
    """Outputs in float32 and the slots; padding rows of the inputs are zero."""
    (hk, dk), (hv, dv) = k.shape[2:], v.shape[2:]
    dims = {"Hk": hk, "Hv": hv, "Dk": dk, "Dv": dv}
    registers = Registers(config_for(TUNABLE, dims, config).columns, interpret)
    call = pl.kernel(
        partial(
            _body,
            key_head_of=lambda head: key_head(head, hk, hv, head_map),
            scale=scale,
            registers=registers,
        ),
        out_type=jax.ShapeDtypeStruct(v.shape, jnp.float32),
        mesh=plgpu.Mesh(grid=(v.shape[0], hv, dv // registers.columns), grid_names=("row", "head", "tile")),
        name="gated_delta_verify_snapshots",
        **kernel_options(registers),
    )
    slots_ref = jax.new_ref(slots, memory_space=plgpu.GMEM)
    out = call(slot, n_valid, q, k, v, jnp.exp(g.astype(jnp.float32)), beta.astype(jnp.float32), slots_ref)
    return out, slots_ref[...]


TUNABLE = gpu_tunable(
    "verify_snapshots",
    example_slots,
    lambda *given, config: verify_snapshots(*given, n_valid=jnp.array([4]), head_map="tiled", scale=1.0, config=config),
)
