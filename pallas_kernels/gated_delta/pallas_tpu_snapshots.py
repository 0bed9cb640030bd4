"""Recurrent verification with snapshots for TPU, in Pallas (Mosaic).

The grid walks rows, blocks of value heads, and tokens; the state stays in VMEM over the tokens. The block of `slots`
that is read is the one that `slot` names (scalar prefetch), and the block that is written is that of the token's age,
into the same buffer: slots that are not written are not touched. Tokens older than the last slot write it in turn, the
newest last; padding tokens repeat slot 0; a row without tokens writes back what it read.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_delta.config import TIMED, TpuConfig, example_slots, tpu_tunable
from pallas_kernels.gated_delta.heads import HeadMap, per_value_head
from pallas_kernels.gated_delta.pallas_tpu_heads import HeadBlocks
from pallas_kernels.gated_delta.pallas_tpu_recurrence import step
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.tuning import config_for


def _body(
    slot_ref, n_valid_ref, q_ref, k_ref, v_ref, decay_ref, beta_ref, read_ref, out_ref, written_ref, state_ref, *, scale
):
    del slot_ref, n_valid_ref  # used by the index maps

    @pl.when(pl.program_id(2) == 0)
    def _load():
        state_ref[...] = read_ref[...]

    for head in range(state_ref.shape[0]):
        row, column = pl.ds(head, 1), (slice(None), pl.ds(head, 1))
        state, _, out_ref[row] = step(
            state_ref[head], q_ref[column], k_ref[column], v_ref[row], decay_ref[row], beta_ref[row], scale
        )
        state_ref[head] = state
    written_ref[...] = state_ref[...]


def verify_snapshots(
    tokens: Tokens,
    slots: Array,
    slot: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: TpuConfig | None = None,
) -> tuple[Array, Array]:
    """Outputs in float32 and the slots; padding rows of the inputs are zero."""
    q, k, v, g, beta = tokens
    n_rows, n_tokens, hk = k.shape[:3]
    n_slots, hv, dk, dv = slots.shape[1:]
    key_heads = config_for(TUNABLE, tokens.sizes, config).key_heads
    heads = hv // HeadBlocks(hk, hv // hk, head_map, key_heads).count

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
        partial(_body, scale=scale),
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


TUNABLE = tpu_tunable("verify_snapshots", example_slots, partial(verify_snapshots, **TIMED))
