"""Verification with records and its commit for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU).

Both are the serial recurrence with the state in registers (pallas_gpu_registers.py): read once, taken through all
tokens, and written by `commit` alone, in place. The WY form would need the state in shared memory and products of 64
rows or more, of which a verification fills a few. `commit` does not touch rows that keep no token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.gated_delta.config import GpuConfig, example_inputs, example_records, gpu_tunable
from pallas_kernels.gated_delta.heads import HeadMap, key_head
from pallas_kernels.gated_delta.pallas_gpu_registers import Registers, kernel_options
from pallas_kernels.tuning import config_for


def _verify_body(
    q_ref, k_ref, v_ref, factor_ref, beta_ref, state_ref, out_ref, u_ref,
    *, key_head_of: Callable[[Any], Any], scale: float, registers: Registers,
):  # fmt: skip
    row, head, tile = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("tile")
    key_head = key_head_of(head)
    columns = pl.ds(tile * registers.columns, registers.columns)

    def token(t: Array, state: Array) -> Array:
        q = registers.load_column(q_ref.at[row, t, key_head])
        k = registers.load_column(k_ref.at[row, t, key_head])
        v = registers.load_row(v_ref.at[row, t, head, columns])
        factor, beta = factor_ref[row, t, head], beta_ref[row, t, head]
        state, u, out = registers.step(state, q, k, v, factor, beta, scale)
        u_ref[row, t, head, columns] = u
        out_ref[row, t, head, columns] = out
        return state

    lax.fori_loop(0, q_ref.shape[1], token, registers.load_state(state_ref.at[row, head, :, columns]))


@partial(jax.jit, static_argnames=("head_map", "scale", "interpret", "config"))
def verify(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: GpuConfig | None = None,
) -> tuple[Array, Array]:
    """Outputs and u, both [B, T, Hv, Dv] in float32; padding rows of the inputs are zero."""
    (hk, dk), (hv, dv) = k.shape[2:], v.shape[2:]
    dims = {"Hk": hk, "Hv": hv, "Dk": dk, "Dv": dv}
    registers = Registers(config_for(VERIFY, dims, config).columns, interpret)
    values = jax.ShapeDtypeStruct(v.shape, jnp.float32)
    call = pl.kernel(
        partial(
            _verify_body,
            key_head_of=lambda head: key_head(head, hk, hv, head_map),
            scale=scale,
            registers=registers,
        ),
        out_type=(values, values),
        mesh=plgpu.Mesh(grid=(v.shape[0], hv, dv // registers.columns), grid_names=("row", "head", "tile")),
        name="gated_delta_verify",
        **kernel_options(registers),
    )
    out, u = call(q, k, v, jnp.exp(g.astype(jnp.float32)), beta.astype(jnp.float32), state)
    return out, u


def _commit_body(
    n_valid_ref, k_ref, u_ref, factor_ref, state_ref, *, key_head_of: Callable[[Any], Any], registers: Registers
):
    row, head, tile = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("tile")
    key_head = key_head_of(head)
    columns = pl.ds(tile * registers.columns, registers.columns)
    n_valid = n_valid_ref[row]

    def token(t: Array, state: Array) -> Array:
        k = registers.load_column(k_ref.at[row, t, key_head])
        u = registers.load_row(u_ref.at[row, t, head, columns])
        return registers.add(registers.decay(state, factor_ref[row, t, head]), k, u)

    @pl.when(n_valid > 0)
    def _apply():
        state = registers.load_state(state_ref.at[row, head, :, columns])
        state_ref[row, head, :, columns] = lax.fori_loop(0, n_valid, token, state)


@partial(jax.jit, static_argnames=("head_map", "interpret", "config"))  # references to GMEM exist under jit
def commit(
    state: Array,
    k: Array,
    u: Array,
    g: Array,
    *,
    n_valid: Array,
    head_map: HeadMap,
    interpret: bool = False,
    config: GpuConfig | None = None,
) -> Array:
    """The state after the first n_valid[b] records, in the buffer of `state`; the other records are zero."""
    (hk, dk), (hv, dv) = k.shape[2:], u.shape[2:]
    dims = {"Hk": hk, "Hv": hv, "Dk": dk, "Dv": dv}
    registers = Registers(config_for(COMMIT, dims, config).columns, interpret)
    call = pl.kernel(
        partial(_commit_body, key_head_of=lambda head: key_head(head, hk, hv, head_map), registers=registers),
        out_type=(),
        mesh=plgpu.Mesh(grid=(u.shape[0], hv, dv // registers.columns), grid_names=("row", "head", "tile")),
        name="gated_delta_commit",
        **kernel_options(registers),
    )
    state_ref = jax.new_ref(state, memory_space=plgpu.GMEM)
    call(n_valid, k, u, jnp.exp(g), state_ref)
    return state_ref[...]


VERIFY = gpu_tunable("verify", partial(example_inputs, n_tokens=4), partial(verify, head_map="tiled", scale=1.0))
COMMIT = gpu_tunable(
    "commit",
    example_records,
    lambda *given, config: commit(*given, n_valid=jnp.array([4]), head_map="tiled", config=config),
)
