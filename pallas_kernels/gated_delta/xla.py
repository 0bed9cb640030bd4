"""Gated delta rule in plain XLA.

With G_t the running sum of g and S_0 the state at the start of a chunk, the recurrence unrolls to

    (I + A) U = beta * (V - exp(G) K S_0),   A_ti = beta_t exp(G_t - G_i) (k_t . k_i) for i < t
    out_t     = scale * (exp(G_t) q_t S_0 + sum_{i <= t} exp(G_t - G_i) (q_t . k_i) u_i)
    S_end     = exp(G_end) S_0 + sum_i exp(G_end - G_i) k_i u_i^T

(the WY / UT transform; Yang et al., "Gated Delta Networks", arXiv:2412.06464). Decays appear only as exp of
differences of G, masked before the exp, so nothing overflows forward or backward.
"""

import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gated_delta.layout import HeadMap, value_heads
from pallas_kernels.gated_delta.triangular import solve_unit_lower

CHUNK = 64


def _decay(log_decay: Array) -> Array:
    """exp(G_t - G_i) for i <= t and 0 elsewhere; `log_decay` is G [..., T]."""
    n = log_decay.shape[-1]
    lower = jnp.tril(jnp.ones((n, n), bool))
    return jnp.exp(jnp.where(lower, log_decay[..., :, None] - log_decay[..., None, :], -jnp.inf))


def _strictly_lower(x: Array) -> Array:
    return jnp.tril(x, -1)


def prefill_chunked(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *, head_map: HeadMap, scale: float
) -> tuple[Array, Array]:
    """All chunks' inner work as batched products; only the chunk states form a chain."""
    n_rows, n_tokens = k.shape[:2]
    hv, dv = v.shape[2:]
    chunk = min(CHUNK, 1 << (n_tokens - 1).bit_length())
    n_chunks = -(-n_tokens // chunk)

    def chunked(x: Array) -> Array:  # [B, T, H, ...] -> [B, H, chunks, chunk, ...]
        x = jnp.pad(x.astype(jnp.float32), [(0, 0), (0, n_chunks * chunk - n_tokens)] + [(0, 0)] * (x.ndim - 2))
        x = x.reshape(n_rows, n_chunks, chunk, *x.shape[2:])
        return jnp.moveaxis(x, 3, 1)

    q, k, v, g, beta = (chunked(x) for x in (q, k, v, g, beta))
    log_decay = jnp.cumsum(g, axis=-1)
    decay = _decay(log_decay)
    from_start = jnp.exp(log_decay)[..., None]
    to_end = decay[..., -1, :, None]

    def products(x: Array) -> Array:
        return value_heads(jnp.einsum("bhntk,bhnik->bhnti", x, k), hv, head_map, 1)

    key_products, query_products = products(k), products(q) * decay
    q, k = value_heads(q, hv, head_map, 1), value_heads(k, hv, head_map, 1)
    beta = beta[..., None]
    solved = solve_unit_lower(
        _strictly_lower(key_products * decay * beta), jnp.concatenate([beta * v, beta * from_start * k], axis=-1)
    )
    u_alone, u_state = solved[..., :dv], solved[..., dv:]

    def next_chunk(state: Array, xs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array]]:
        u_alone, u_state, k_to_end, decay_all = xs
        u = u_alone - u_state @ state
        return state * decay_all + jnp.swapaxes(k_to_end, -1, -2) @ u, (state, u)

    per_chunk = (u_alone, u_state, k * to_end, from_start[..., -1:, :])
    state, (starts, u) = lax.scan(next_chunk, state, tuple(jnp.moveaxis(x, 2, 0) for x in per_chunk))
    starts, u = jnp.moveaxis(starts, 0, 2), jnp.moveaxis(u, 0, 2)
    out = scale * ((q * from_start) @ starts + query_products @ u)
    return jnp.moveaxis(out, 1, 3).reshape(n_rows, n_chunks * chunk, hv, dv)[:, :n_tokens], state


def verify_wy(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *, head_map: HeadMap, scale: float
) -> tuple[Array, Array]:
    """One read of the state for all T tokens; returns out and u, both [B, T, Hv, Dv]."""
    n_tokens, hv = v.shape[1:3]
    q, k, v, g, beta = (jnp.moveaxis(x.astype(jnp.float32), 1, 2) for x in (q, k, v, g, beta))  # [B, H, T, ...]
    log_decay = jnp.cumsum(g, axis=-1)
    decay = _decay(log_decay)
    from_start = jnp.exp(log_decay)[..., None]
    beta = beta[..., None]
    key_and_query = jnp.concatenate([k, q], axis=2)
    products = value_heads(jnp.einsum("bhtk,bhik->bhti", key_and_query, k), hv, head_map, 1)
    on_state = value_heads(key_and_query, hv, head_map, 1) @ state
    u = solve_unit_lower(
        _strictly_lower(products[:, :, :n_tokens] * decay * beta), beta * (v - from_start * on_state[:, :, :n_tokens])
    )
    out = scale * (from_start * on_state[:, :, n_tokens:] + (products[:, :, n_tokens:] * decay) @ u)
    return jnp.moveaxis(out, 2, 1), jnp.moveaxis(u, 2, 1)


def _step(state: Array, k: Array, v: Array, g: Array, beta: Array) -> tuple[Array, Array]:
    """One token: the state after it, and u."""
    state = state * jnp.exp(g)[..., None, None]
    u = beta[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state))
    return state + k[..., :, None] * u[..., None, :], u


def commit_serial(state: Array, k: Array, u: Array, g: Array, n: Array, *, head_map: HeadMap) -> Array:
    """Applies the first n[b] records, with the recurrence's own order of operations."""
    hv = u.shape[2]

    def step(state: Array, xs: tuple[Array, ...]) -> tuple[Array, None]:
        t, k, u, g = xs
        k = value_heads(k.astype(jnp.float32), hv, head_map, 1)
        new = state * jnp.exp(g)[..., None, None] + k[..., :, None] * u[..., None, :]
        return jnp.where((t < n)[:, None, None, None], new, state), None

    xs = (jnp.arange(k.shape[1]), *(jnp.moveaxis(x, 1, 0) for x in (k, u, g)))
    return lax.scan(step, state, xs)[0]


def verify_recurrent(
    q: Array, k: Array, v: Array, g: Array, beta: Array, state: Array, *, head_map: HeadMap, scale: float
) -> tuple[Array, Array, Array]:
    """The recurrence as a scan; returns out and u [B, T, Hv, Dv] and the state after every token [T, B, Hv, Dk, Dv]."""
    hv = v.shape[2]
    q, k = value_heads(q, hv, head_map, 2), value_heads(k, hv, head_map, 2)

    def step(state: Array, xs: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        q, k, v, g, beta = (x.astype(jnp.float32) for x in xs)
        state, u = _step(state, k, v, g, beta)
        return state, (scale * jnp.einsum("bhk,bhkv->bhv", q, state), u, state)

    _, (out, u, states) = lax.scan(step, state, tuple(jnp.moveaxis(x, 1, 0) for x in (q, k, v, g, beta)))
    return jnp.moveaxis(out, 0, 1), jnp.moveaxis(u, 0, 1), states
