"""Chunked gated delta rule for TPU, in Pallas (Mosaic): the equations of xla_chunked.py, one chunk after the other.

The grid walks rows, blocks of key heads, and chunks. A head's state stays in VMEM over the chunks, so that neither the
states between chunks nor what the transform makes of a chunk is written to memory. Chunks of padding are not read.

Products are float32 in six passes of the matrix unit, since the state sums up what they round; those of keys with keys
and queries are exact in one pass where both are bfloat16. VMEM: with one key head, three value heads, 128 x 128 and
chunks of 64, twice 0.6 MiB of blocks, and per head some 0.3 MiB of values on the way.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.gated_delta.config import (
    SHAPES,
    TIMED,
    TpuPrefillConfig,
    example_tokens,
    tpu_prefill_candidates,
    tpu_prefill_heuristic,
)
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.pallas_tpu_heads import HeadBlocks
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.gated_delta.triangular import doubling_inverse
from pallas_kernels.tuning import Tunable, config_for

SUBLANES = 16
"""Rows of a register of bfloat16, and so of the smallest chunk."""


def _products_with_keys(x: Array, k: Array) -> Array:
    """[C, C]: exact products, summed in float32."""
    precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    contract_widths = (((1,), (1,)), ((), ()))
    return lax.dot_general(x, k, contract_widths, precision=precision, preferred_element_type=jnp.float32)


def _body(
    n_valid_ref, q_ref, k_ref, v_ref, gates_ref, start_ref, out_ref, state_ref, *, heads: HeadBlocks, scale: float
):
    row, chunk = pl.program_id(0), pl.program_id(2)
    n_tokens = q_ref.shape[1]
    square = (n_tokens, n_tokens)
    lower = lax.broadcasted_iota(jnp.int32, square, 0) >= lax.broadcasted_iota(jnp.int32, square, 1)
    strictly = lax.broadcasted_iota(jnp.int32, square, 0) > lax.broadcasted_iota(jnp.int32, square, 1)

    @pl.when(chunk == 0)
    def _load():
        state_ref[...] = start_ref[...]

    @pl.when(chunk * n_tokens >= n_valid_ref[row])
    def _skip():
        out_ref[...] = jnp.zeros_like(out_ref)

    @pl.when(chunk * n_tokens < n_valid_ref[row])
    @jax.default_matmul_precision("highest")
    def _advance():
        @pl.loop(0, heads.size)
        def _key_head(i):
            q, k = q_ref[i], k_ref[i]
            keys_keys, queries_keys = _products_with_keys(k, k), _products_with_keys(q, k)
            k = k.astype(jnp.float32)
            both = jnp.concatenate([k, q.astype(jnp.float32)])

            @pl.loop(0, heads.repeats)
            def _value_head(r):
                head = heads.at(r, i)
                state, gates = state_ref[head], gates_ref[head]
                columns = gates.T
                log_decay, beta = columns[:, :1], columns[:, 1:]
                # Masked before the exp, which above the diagonal overflows.
                decay = jnp.exp(jnp.where(lower, log_decay - gates[:1], -jnp.inf))
                from_start, end = jnp.exp(log_decay), log_decay[n_tokens - 1 :]
                with_state = both @ state
                keys_state, queries_state = with_state[:n_tokens], with_state[n_tokens:]
                inverse = doubling_inverse(jnp.where(strictly, beta * keys_keys * decay, 0))
                u = inverse @ (beta * (v_ref[head].astype(jnp.float32) - from_start * keys_state))
                out_ref[head] = scale * (from_start * queries_state + (queries_keys * decay) @ u)
                state_ref[head] = state * jnp.exp(end) + (k * jnp.exp(end - log_decay)).T @ u


def prefill(
    tokens: Tokens,
    state: Array,
    n_valid: Array,
    *,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
    config: TpuPrefillConfig | None = None,
) -> tuple[Array, Array]:
    """Outputs in float32 and the final state; padding rows of the inputs are zero."""
    q, k, v, g, beta = tokens
    (n_rows, n_tokens, hk, dk), (hv, dv) = k.shape, v.shape[2:]
    config = config_for(TUNABLE, tokens.sizes, config)
    heads = HeadBlocks(hk, hv // hk, head_map, config.key_heads)
    chunk = max(SUBLANES, min(config.chunk, 1 << (n_tokens - 1).bit_length()))
    n_chunks = -(-n_tokens // chunk)
    dtype = jnp.bfloat16 if q.dtype == k.dtype == jnp.bfloat16 else jnp.float32

    def heads_first(x: Array) -> Array:  # [B, T, H, ...] -> [B, H, T, ...], whole chunks
        x = jnp.pad(x, [(0, 0), (0, n_chunks * chunk - n_tokens)] + [(0, 0)] * (x.ndim - 2))
        return jnp.swapaxes(x, 1, 2)

    gates = jnp.stack([heads_first(x.astype(jnp.float32)) for x in (g, beta)], axis=2)
    gates = jnp.moveaxis(gates.reshape(n_rows, hv, 2, n_chunks, chunk), 3, 2)
    gates = gates.at[:, :, :, 0].set(jnp.cumsum(gates[:, :, :, 0], axis=-1))

    def first(b: Any, h: Any, c: Any, n_valid_ref: Any) -> tuple[Any, Any]:
        return b, h

    def read(b: Any, h: Any, c: Any, n_valid_ref: Any) -> tuple[Any, Any, Any]:
        last = lax.div(jnp.maximum(n_valid_ref[b] - 1, 0), jnp.int32(chunk))
        return b, h, jnp.minimum(c, last)

    def written(b: Any, h: Any, c: Any, n_valid_ref: Any) -> tuple[Any, Any, Any]:
        return b, h, c

    keys, states = heads.of_keys((chunk, dk), read), heads.of_values((dk, dv), first)
    values = heads.split(heads_first(v if v.dtype == jnp.bfloat16 else v.astype(jnp.float32)))
    out, state = pl.pallas_call(
        partial(_body, heads=heads, scale=scale),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(n_rows, heads.count, n_chunks),
            in_specs=[keys, keys, heads.of_values((chunk, dv), read), heads.of_values((None, 2, chunk), read), states],
            out_specs=[heads.of_values((chunk, dv), written), states],
        ),
        out_shape=[
            jax.ShapeDtypeStruct(values.shape, jnp.float32),
            jax.ShapeDtypeStruct(heads.split(state).shape, state.dtype),
        ],
        input_output_aliases={5: 1},
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="gated_delta_prefill",
    )(
        n_valid,
        heads_first(q.astype(dtype)),
        heads_first(k.astype(dtype)),
        values,
        heads.split(gates),
        heads.split(state),
    )
    out = jnp.swapaxes(out.reshape(n_rows, hv, n_chunks * chunk, dv), 1, 2)[:, :n_tokens]
    return out, state.reshape(n_rows, hv, dk, dv)


EXAMPLE, RUN = partial(example_tokens, n_tokens=1024), partial(prefill, **TIMED)
TUNABLE = Tunable(
    "gated_delta.prefill", "pallas_tpu", TpuPrefillConfig, tpu_prefill_heuristic, tpu_prefill_candidates, SHAPES,
    EXAMPLE, RUN,
)  # fmt: skip
