"""Chunked gated delta rule for many tokens, in plain XLA.

With G_t the running sum of g inside a chunk and S the state at its start, the recurrence unrolls to

    (I + A) U = beta * (V - exp(G) K S),   A_ti = beta_t exp(G_t - G_i) (k_t . k_i) for i < t
    out_t     = scale * (exp(G_t) q_t S + sum_{i <= t} exp(G_t - G_i) (q_t . k_i) u_i)
    S_end     = exp(G_end) S + sum_i exp(G_end - G_i) k_i u_i^T

(the WY / UT transform; Yang et al., "Gated Delta Networks", arXiv:2412.06464, section 3.3).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jaxtyping import Float

from pallas_kernels.gated_delta.heads import HeadMap, per_value_head
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.gated_delta.triangular import decay_ratios, solve_unit_lower

CHUNK = 64


class Chunks(NamedTuple):
    """What can be made of each of N chunks of C tokens without its state, all [B, Hv, N, ...].

    Attributes:
        u_alone: [C, Dv], u = u_alone - u_of_state S.
        u_of_state: [C, Dk].
        k_to_end: [C, Dk], keys decayed to the chunk's end, so that S_end = decay S + k_to_end^T u.
        decay: [1, 1].
        q_from_start: [C, Dk], out = scale (q_from_start S + queries_keys u).
        queries_keys: [C, C].
    """

    u_alone: Array
    u_of_state: Array
    k_to_end: Array
    decay: Array
    q_from_start: Array
    queries_keys: Array


@jax.default_matmul_precision("highest")  # the state adds up what products round
def transform(tokens: Tokens, *, head_map: HeadMap, chunk: int) -> Chunks:
    """Of [B, T, ...] in float32, the last chunk filled up with zeros. All chunks at once."""
    n_rows, n_tokens, hv, dv = tokens.v.shape
    n_chunks = -(-n_tokens // chunk)

    def chunked(x: Array) -> Array:  # [B, T, H, ...] -> [B, H, chunks, chunk, ...]
        x = jnp.pad(x.astype(jnp.float32), [(0, 0), (0, n_chunks * chunk - n_tokens)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(n_rows, n_chunks, chunk, *x.shape[2:])
        return jnp.moveaxis(x, 3, 1)

    def with_keys(x: Array) -> Array:  # products per key head, decay per value head
        return decay * per_value_head(jnp.einsum("bhntk,bhnik->bhnti", x, k), hv, head_map, 1)

    q, k, v, g, beta = map(chunked, tokens)
    log_decay = jnp.cumsum(g, axis=-1)
    decay = decay_ratios(log_decay)
    from_start, to_end = jnp.exp(log_decay)[..., None], decay[..., -1, :, None]
    beta = beta[..., None]
    keys_keys, queries_keys = with_keys(k), with_keys(q)
    q, k = per_value_head(q, hv, head_map, 1), per_value_head(k, hv, head_map, 1)
    solved = solve_unit_lower(beta * keys_keys, jnp.concatenate([beta * v, beta * from_start * k], axis=-1))
    return Chunks(
        u_alone=solved[..., :dv],
        u_of_state=solved[..., dv:],
        k_to_end=k * to_end,
        decay=from_start[..., -1:, :],
        q_from_start=q * from_start,
        queries_keys=queries_keys,
    )


def joined(out: Float[Array, "B Hv chunks C Dv"], n_tokens: int) -> Float[Array, "B T Hv Dv"]:
    """Outputs of chunks as those of tokens, without the padding of the last chunk."""
    return jnp.moveaxis(out, 1, 3).reshape(len(out), -1, out.shape[1], out.shape[-1])[:, :n_tokens]


@jax.default_matmul_precision("highest")  # the state adds up what products round
def prefill(tokens: Tokens, state: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, Array]:
    """Outputs in float32 and the final state. All chunks' inner work is batched; only the chunk states form a chain."""
    n_tokens = tokens.v.shape[1]
    chunk = min(CHUNK, 1 << (n_tokens - 1).bit_length())
    chunks = transform(tokens, head_map=head_map, chunk=chunk)

    def next_chunk(state: Array, xs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        u_alone, u_of_state, k_to_end, chunk_decay = xs
        u = u_alone - u_of_state @ state
        return state * chunk_decay + jnp.swapaxes(k_to_end, -1, -2) @ u, (state, u)

    state, (starts, u) = lax.scan(next_chunk, state, tuple(jnp.moveaxis(x, 2, 0) for x in chunks[:4]))
    starts, u = jnp.moveaxis(starts, 0, 2), jnp.moveaxis(u, 0, 2)
    out = scale * (chunks.q_from_start @ starts + chunks.queries_keys @ u)
    return joined(out, n_tokens), state
