"""Chunked gated delta rule for NVIDIA's Hopper GPUs: XLA makes of all chunks what needs no state, and a Pallas kernel
(Mosaic GPU) runs the chain of states.

A warpgroup keeps Dk x 64 of one head's state in registers over all chunks and multiplies with tensor cores (wgmma).
These take bfloat16: every float32 factor is the sum of two of them, and of the four products the three that count are
added, which leaves a relative error of some 2^-17 for each. Chunks of padding are not read.

Each chunk's operands are fetched when the one before is done: there are no buffers for the next one, and no second
warpgroup to fetch it meanwhile. What XLA hands over is stored once in memory, per value head.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.gated_delta.xla_chunked import joined, transform
from pallas_kernels.mosaic_gpu import kernel_options, load, plgpu
from pallas_kernels.table import Dims

CHUNK = 64
"""Rows of the smallest product."""
COLUMNS = 64
MAX_ROWS = 128
"""Dk at which the operands of a chunk and the state still fit into shared memory: 160 KiB."""


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if dims["Dv"] % COLUMNS:
        return f"Dv={dims['Dv']} is not a multiple of {COLUMNS}"
    if dims["Dk"] > MAX_ROWS:
        return f"Dk={dims['Dk']} is more than {MAX_ROWS}"
    return None


def _halves(x: Array) -> tuple[Array, Array]:
    """Split x into two bfloat16 numbers whose sum is x."""
    high = x.astype(jnp.bfloat16)
    return high, (x - high.astype(jnp.float32)).astype(jnp.bfloat16)


def _store(ref: Any, x: Array) -> None:
    """The halves of x [M, N] one above the other in [2 M, N]."""
    for i, half in enumerate(_halves(x)):
        ref[pl.ds(i * x.shape[0], x.shape[0])] = half


def _accumulate(acc_ref: Any, left_ref: Any, right_ref: Any) -> None:
    """Adds the product of two matrices of which there are halves."""
    for i, j in ((0, 0), (0, 1), (1, 0)):
        left, right = (
            ref.at[pl.ds(half * (ref.shape[0] // 2), ref.shape[0] // 2)]
            for ref, half in ((left_ref, i), (right_ref, j))
        )
        plgpu.wgmma(acc_ref, left, right)


def _body(
    n_chunks_ref, decay_ref, u_alone_ref, u_of_state_ref, q_ref, queries_keys_ref, k_ref, state_ref, out_ref,
    *, interpreted: bool,
):  # fmt: skip
    row, head, tile = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("tile")
    columns = pl.ds(tile * COLUMNS, COLUMNS)
    n_heads, n_chunks = u_alone_ref.shape[1:3]
    dk = state_ref.shape[2]

    def loaded(ref: Any) -> Array:
        return load(ref, plgpu.Layout.WGMMA, interpreted=interpreted)

    def chain(u_of_state: Any, q: Any, queries_keys: Any, k: Any, state_halves: Any, u_halves: Any, fetched: Any):
        operands = ((u_of_state_ref, u_of_state), (q_ref, q), (queries_keys_ref, queries_keys), (k_ref, k))

        def chunk(c: Array, state: Array) -> Array:
            for source, target in operands:
                n = target.shape[0]
                index = (row * n_heads + head) * n_chunks + c
                plgpu.copy_gmem_to_smem(source.at[pl.ds(index * n, n)], target, fetched)
            _store(state_halves, state)
            plgpu.commit_smem()
            plgpu.barrier_wait(fetched)

            def from_state(acc_ref: Any) -> Array:
                _accumulate(acc_ref, u_of_state, state_halves)
                return acc_ref[...]

            u = loaded(u_alone_ref.at[row, head, c, :, columns])
            u = u - pl.run_scoped(from_state, plgpu.ACC((CHUNK, COLUMNS)))
            _store(u_halves, u)
            plgpu.commit_smem()

            def output(acc_ref: Any) -> Array:
                _accumulate(acc_ref, q, state_halves)
                _accumulate(acc_ref, queries_keys, u_halves)
                return acc_ref[...]

            def update(acc_ref: Any) -> Array:
                _accumulate(acc_ref, k, u_halves)
                return acc_ref[...]

            out_ref[row, head, c, :, columns] = pl.run_scoped(output, plgpu.ACC((CHUNK, COLUMNS)))
            state = state * decay_ref[row, head, c] + pl.run_scoped(update, plgpu.ACC((dk, COLUMNS)))
            plgpu.commit_smem()  # all warps have read what the next chunk overwrites
            return state

        state = loaded(state_ref.at[row, head, :, columns])
        state_ref[row, head, :, columns] = lax.fori_loop(0, n_chunks_ref[row], chunk, state)

    shapes = (
        (2 * CHUNK, dk),
        (2 * CHUNK, dk),
        (2 * CHUNK, CHUNK),
        (2 * dk, CHUNK),
        (2 * dk, COLUMNS),
        (2 * CHUNK, COLUMNS),
    )
    tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))  # what wgmma reads
    memory = (plgpu.SMEM(shape, jnp.bfloat16, transforms=tiles) for shape in shapes)
    pl.run_scoped(chain, *memory, plgpu.Barrier(num_arrivals=4))


@partial(jax.jit, static_argnames=("head_map", "scale", "interpret"))  # references to GMEM exist under jit
def prefill(
    tokens: Tokens, state: Array, n_valid: Array, *, head_map: HeadMap, scale: float, interpret: bool = False
) -> tuple[Array, Array]:
    """Outputs in float32 and the final state; padding rows of the inputs are zero."""
    (n_rows, n_tokens, hv, dv), dk = tokens.v.shape, tokens.k.shape[-1]
    extra = -dk % CHUNK  # rows of zeros change nothing
    q, k = (jnp.pad(x, [(0, 0)] * 3 + [(0, extra)]) for x in (tokens.q, tokens.k))
    chunks = transform(tokens._replace(q=q, k=k), head_map=head_map, chunk=CHUNK)
    operands = (
        chunks.u_of_state,
        scale * chunks.q_from_start,
        scale * chunks.queries_keys,
        jnp.swapaxes(chunks.k_to_end, -1, -2),
    )
    # The hardware copies slabs of arrays with few axes.
    slabs = [jnp.stack(_halves(x), axis=3).reshape(-1, x.shape[-1]) for x in operands]
    state_ref = jax.new_ref(jnp.pad(state, [(0, 0)] * 2 + [(0, extra), (0, 0)]), memory_space=plgpu.GMEM)
    call = pl.kernel(
        partial(_body, interpreted=interpret),
        out_type=jax.ShapeDtypeStruct(chunks.u_alone.shape, jnp.float32),
        mesh=plgpu.Mesh(grid=(n_rows, hv, dv // COLUMNS), grid_names=("row", "head", "tile")),
        name="gated_delta_prefill",
        **kernel_options(interpreted=interpret),
    )
    n_chunks = -(-n_valid // CHUNK)
    out = call(n_chunks, chunks.decay[..., 0, 0], chunks.u_alone, *slabs, state_ref)
    written = jnp.arange(n_tokens) < n_valid[:, None]
    return jnp.where(written[..., None, None], joined(out, n_tokens), 0), state_ref[...][:, :, :dk]
