"""Recurrent verification with snapshots for TPU, in Pallas (Mosaic).

The grid walks rows, blocks of value heads, and tokens; the state stays in VMEM over the tokens. The block of `slots`
that is read is the one that `slot` names (scalar prefetch), and the block that is written is that of the token's age,
into the same buffer: slots that are not written are not touched. Tokens older than the last slot write it in turn, the
newest last; padding tokens repeat slot 0; a row without tokens writes back what it read.
"""

import functools

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_delta.heads import HeadMap, per_value_head

MAX_HEADS_PER_BLOCK = 8
"""Value heads of one grid step; bounds VMEM (five blocks of 64 KiB a head at 128 x 128) and the unrolled program."""


def _body(
    slot_ref, n_valid_ref, q_ref, k_ref, v_ref, decay_ref, beta_ref, read_ref, out_ref, written_ref, state_ref, *, scale
):
    del slot_ref, n_valid_ref  # used by the index maps

    @pl.when(pl.program_id(2) == 0)
    def _load():
        state_ref[...] = read_ref[...]

    for head in range(state_ref.shape[0]):
        # Keys and queries are columns and everything of width Dv is a row: no transposes, one vector register layout.
        row, column = pl.ds(head, 1), (slice(None), pl.ds(head, 1))
        k = k_ref[column]
        state = state_ref[head] * decay_ref[row]
        u = beta_ref[row] * (v_ref[row] - jnp.sum(state * k, axis=0, keepdims=True))
        state = state + k * u
        out_ref[row] = scale * jnp.sum(state * q_ref[column], axis=0, keepdims=True)
        state_ref[head] = state
    written_ref[...] = state_ref[...]


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
) -> tuple[Array, Array]:
    """Outputs in float32 and the slots; padding rows of the inputs are zero."""
    n_rows, n_tokens = k.shape[:2]
    n_slots, hv, dk, dv = slots.shape[1:]
    heads = max(h for h in range(1, MAX_HEADS_PER_BLOCK + 1) if hv % h == 0)

    def blocks(x: Array) -> Array:  # [B, T, Hv, ...] -> [B, blocks, T, heads, ...]
        x = x.astype(jnp.float32).reshape(n_rows, n_tokens, hv // heads, heads, *x.shape[3:])
        return jnp.moveaxis(x, 2, 1)

    def columns(x: Array) -> Array:
        return jnp.swapaxes(blocks(per_value_head(x, hv, head_map, 2)), -1, -2)

    def rows(x: Array) -> Array:
        return jnp.broadcast_to(blocks(x)[..., None], (n_rows, hv // heads, n_tokens, heads, dv))

    def of_token(b, h, t, slot_ref, n_valid_ref):
        return b, h, t, 0, 0

    def read_from(b, h, t, slot_ref, n_valid_ref):
        return b, slot_ref[b], h, 0, 0

    def written_to(b, h, t, slot_ref, n_valid_ref):
        age = jnp.clip(n_valid_ref[b] - 1 - t, 0, n_slots - 1)
        return b, jnp.where(n_valid_ref[b] == 0, slot_ref[b], age), h, 0, 0

    column_spec = pl.BlockSpec((None, None, None, dk, heads), of_token)
    row_spec = pl.BlockSpec((None, None, None, heads, dv), of_token)
    state_block = (None, None, heads, dk, dv)
    out, slots = pl.pallas_call(
        functools.partial(_body, scale=scale),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(n_rows, hv // heads, n_tokens),
            in_specs=[column_spec, column_spec, row_spec, row_spec, row_spec, pl.BlockSpec(state_block, read_from)],
            out_specs=[row_spec, pl.BlockSpec(state_block, written_to)],
            scratch_shapes=[pltpu.VMEM((heads, dk, dv), jnp.float32)],
        ),
        out_shape=[
            jax.ShapeDtypeStruct((n_rows, hv // heads, n_tokens, heads, dv), jnp.float32),
            jax.ShapeDtypeStruct(slots.shape, slots.dtype),
        ],
        input_output_aliases={7: 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="gated_delta_verify_snapshots",
    )(slot, n_valid, columns(q), columns(k), blocks(v), rows(jnp.exp(g.astype(jnp.float32))), rows(beta), slots)
    return jnp.moveaxis(out, 1, 2).reshape(n_rows, n_tokens, hv, dv), slots
