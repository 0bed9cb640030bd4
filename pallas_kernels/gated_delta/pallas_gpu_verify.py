"""Verification with records and its commit for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU).

Both are the serial recurrence with the state in registers (pallas_gpu_registers.py): read once, taken through all
tokens, and written by `commit` alone, in place. The WY form would need the state in shared memory and products of 64
rows or more, of which a verification fills a few. `commit` does not touch rows that keep no token.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.gated_delta.config import TIMED, GpuConfig, example_records, example_tokens, gpu_tunable
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.pallas_gpu_registers import Registers, with_factors
from pallas_kernels.gated_delta.tokens import Records, Tokens
from pallas_kernels.mosaic_gpu import plgpu
from pallas_kernels.tuning import config_for


def _verify_body(
    n_valid_ref, q_ref, k_ref, v_ref, factor_ref, beta_ref, state_ref, out_ref, u_ref,
    *, scale: float, registers: Registers,
):  # fmt: skip
    at, tokens = registers.place(), Tokens(q_ref, k_ref, v_ref, factor_ref, beta_ref)
    n_valid = n_valid_ref[at.row]

    def token(t: Array, state: Array) -> Array:
        # No valid token sees what comes behind, whatever it is.
        state, u, out = registers.step(state, tokens, at, t, scale)
        valid, zeros = lax.broadcast(t < n_valid, u.shape), jnp.zeros_like(u)
        u_ref[at.row, t, at.head, at.columns] = lax.select(valid, u, zeros)
        out_ref[at.row, t, at.head, at.columns] = lax.select(valid, out, zeros)
        return state

    lax.fori_loop(0, q_ref.shape[1], token, registers.load_state(state_ref.at[at.row, at.head, :, at.columns]))


@partial(jax.jit, static_argnames=("head_map", "scale", "interpret", "config"))
def verify(
    tokens: Tokens, state: Array, n_valid: Array, *, head_map: HeadMap, scale: float, interpret: bool = False,
    config: GpuConfig | None = None,
) -> tuple[Array, Array]:  # fmt: skip
    """Outputs and u, both [B, T, Hv, Dv] in float32, zeros in rows t >= n_valid[b]."""
    registers = Registers.of(tokens, config_for(VERIFY, tokens.sizes, config), head_map, interpret)
    values = jax.ShapeDtypeStruct(tokens.v.shape, jnp.float32)
    out, u = registers.kernel("verify", _verify_body, len(tokens.v), (values, values), scale=scale)(
        n_valid, *with_factors(tokens), state
    )
    return out, u


def _commit_body(n_valid_ref, k_ref, u_ref, factor_ref, state_ref, *, registers: Registers):
    at = registers.place()
    n_valid, place = n_valid_ref[at.row], (at.row, at.head, slice(None), at.columns)

    def token(t: Array, state: Array) -> Array:
        k, u = registers.load_key(k_ref, at, t), registers.load_value(u_ref, at, t)
        return registers.add(registers.decay(state, factor_ref[at.row, t, at.head]), k, u)

    @pl.when(n_valid > 0)
    def _apply():
        state_ref[place] = lax.fori_loop(0, n_valid, token, registers.load_state(state_ref.at[place]))


@partial(jax.jit, static_argnames=("head_map", "interpret", "config"))  # references to GMEM exist under jit
def commit(
    records: Records, state: Array, n_valid: Array, *, head_map: HeadMap, interpret: bool = False,
    config: GpuConfig | None = None,
) -> Array:  # fmt: skip
    """The state after the first n_valid[b] records, in the buffer of `state`; the other records are not read."""
    registers = Registers.of(records, config_for(COMMIT, records.sizes, config), head_map, interpret)
    state_ref = jax.new_ref(state, memory_space=plgpu.GMEM)
    registers.kernel("commit", _commit_body, len(state), ())(
        n_valid, records.k, records.u, jnp.exp(records.g), state_ref
    )
    return state_ref[...]


VERIFY = gpu_tunable("verify", example_tokens, partial(verify, **TIMED))
COMMIT = gpu_tunable("commit", example_records, partial(commit, head_map="tiled"))
