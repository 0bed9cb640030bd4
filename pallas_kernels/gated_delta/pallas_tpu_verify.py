"""Verification with records and its commit for TPU, in Pallas (Mosaic).

Both are the serial recurrence. A head's state, 64 KiB at 128 x 128, is sixteen of the vector registers: it is read
once, goes through all tokens, and `verify` writes nothing of it. The WY form would put the same work on the matrix
unit, where the state would be loaded as weights for a handful of rows, in six passes for the accuracy of float32, and
its records would give another state than the recurrence in the last bits.

`commit` does not touch rows that keep no token: the grid steps of such a row name the block of the step before, which
is neither read nor written again.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_delta.config import TIMED, TpuConfig, example_records, example_tokens, tpu_tunable, tpu_unfit
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.padding import masked
from pallas_kernels.gated_delta.pallas_tpu_heads import HeadBlocks
from pallas_kernels.gated_delta.pallas_tpu_recurrence import add, decay, step
from pallas_kernels.gated_delta.tokens import Records, Tokens
from pallas_kernels.table import Dims
from pallas_kernels.tuning import config_for

MAX_TOKENS = 16
"""Programs are unrolled over the tokens."""


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if dims["T"] > MAX_TOKENS:
        return f"T={dims['T']} is more than {MAX_TOKENS} tokens"
    return tpu_unfit(dims)


def _heads_first(x: Array) -> Array:
    """[B, T, H, ...] -> [B, H, T, ...] in float32."""
    return jnp.swapaxes(x.astype(jnp.float32), 1, 2)


def _verify_body(
    q_ref, k_ref, v_ref, factor_ref, beta_ref, state_ref, out_ref, u_ref, *, heads: HeadBlocks, scale: float
):
    @pl.loop(0, heads.size)
    def _key_head(i):
        queries, keys = q_ref[i].T, k_ref[i].T

        @pl.loop(0, heads.repeats)
        def _value_head(r):
            head = heads.at(r, i)
            state = state_ref[head]
            for t in range(q_ref.shape[1]):
                row, column = (*head, pl.ds(t, 1)), slice(t, t + 1)
                factor, beta = factor_ref[(*head, 0, t)], beta_ref[(*head, 0, t)]
                state, u, out = step(state, queries[:, column], keys[:, column], v_ref[row], factor, beta, scale)
                u_ref[row] = u
                out_ref[row] = out


def verify(
    tokens: Tokens,
    state: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: TpuConfig | None = None,
) -> tuple[Array, Array]:
    """Outputs and u, both [B, T, Hv, Dv] in float32; padding rows of the inputs are zero."""
    q, k, v, g, beta = tokens
    (n_rows, n_tokens, hk, dk), (hv, dv) = k.shape, v.shape[2:]
    heads = HeadBlocks(hk, hv // hk, head_map, config_for(VERIFY, tokens.sizes, config).key_heads)

    def place(b, h):
        return b, h

    def scalars(x: Array) -> Array:
        return heads.split(_heads_first(x)[:, :, None])

    keys, values = heads.of_keys((n_tokens, dk), place), heads.of_values((n_tokens, dv), place)
    in_scalar_memory = heads.of_values((1, n_tokens), place, memory_space=pltpu.SMEM)
    values_shape = jax.ShapeDtypeStruct(heads.split(_heads_first(v)).shape, jnp.float32)
    results = pl.pallas_call(
        partial(_verify_body, heads=heads, scale=scale),
        grid=(n_rows, heads.count),
        in_specs=[keys, keys, values, in_scalar_memory, in_scalar_memory, heads.of_values((dk, dv), place)],
        out_specs=[values, values],
        out_shape=[values_shape, values_shape],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="gated_delta_verify",
    )(
        _heads_first(q),
        _heads_first(k),
        heads.split(_heads_first(v)),
        scalars(jnp.exp(g.astype(jnp.float32))),
        scalars(beta),
        heads.split(state),
    )
    out, u = (jnp.swapaxes(x.reshape(n_rows, hv, n_tokens, dv), 1, 2) for x in results)
    return out, u


def _commit_body(n_ref, row_ref, block_ref, k_ref, u_ref, factor_ref, state_ref, committed_ref, *, heads: HeadBlocks):
    del row_ref, block_ref  # used by the index maps
    row, block = pl.program_id(0), pl.program_id(1)

    @pl.when(n_ref[row] > 0)
    def _apply():
        @pl.loop(0, heads.size)
        def _key_head(i):
            keys = k_ref[i].T

            @pl.loop(0, heads.repeats)
            def _value_head(r):
                head = heads.at(r, i)
                state = state_ref[head]
                for t in range(k_ref.shape[1]):
                    state = decay(state, factor_ref[(*head, 0, t)])
                    state = add(state, keys[:, t : t + 1], u_ref[(*head, pl.ds(t, 1))])
                committed_ref[head] = state

    # The first block is written back whatever happens, if only because no row keeps a token.
    @pl.when((row == 0) & (block == 0) & (n_ref[row] == 0))
    def _keep():
        committed_ref[...] = state_ref[...]


def commit(
    records: Records,
    state: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    interpret: bool = False,
    config: TpuConfig | None = None,
) -> Array:
    """The state after the first n_valid[b] records, in the buffer of `state`; the other records are zero."""
    (n_rows, n_tokens, hk, dk), (hv, dv) = records.k.shape, records.u.shape[2:]
    heads = HeadBlocks(hk, hv // hk, head_map, config_for(COMMIT, records.sizes, config).key_heads)
    # Rows without tokens stay at the last block of the row before them that has some, or at the first block to come.
    active = n_valid > 0
    before = lax.cummax(jnp.where(active, jnp.arange(n_rows), -1))
    row_of = jnp.where(before >= 0, before, jnp.argmax(active)).astype(jnp.int32)
    block_of = jnp.where(before >= 0, heads.count - 1, 0).astype(jnp.int32)

    def place(b: Any, h: Any, n_ref: Any, row_ref: Any, block_ref: Any) -> tuple[Any, Any]:
        return row_ref[b], jnp.where(n_ref[b] > 0, h, block_ref[b])

    states = heads.of_values((dk, dv), place)
    split = heads.split(state)
    committed = pl.pallas_call(
        partial(_commit_body, heads=heads),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(n_rows, heads.count),
            in_specs=[
                heads.of_keys((n_tokens, dk), place),
                heads.of_values((n_tokens, dv), place),
                heads.of_values((1, n_tokens), place, memory_space=pltpu.SMEM),
                states,
            ],
            out_specs=states,
        ),
        out_shape=jax.ShapeDtypeStruct(split.shape, split.dtype),
        input_output_aliases={6: 0},
        # In order: a row without tokens relies on the step before it.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary")),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="gated_delta_commit",
    )(
        n_valid,
        row_of,
        block_of,
        _heads_first(records.k),
        heads.split(_heads_first(records.u)),
        heads.split(_heads_first(jnp.exp(records.g))[:, :, None]),
        split,
    )
    return committed.reshape(state.shape)


VERIFY = tpu_tunable("verify", example_tokens, partial(masked(verify), **TIMED))
COMMIT = tpu_tunable("commit", example_records, partial(commit, head_map="tiled"))
