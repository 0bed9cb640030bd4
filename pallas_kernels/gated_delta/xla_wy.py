"""Verification of a few tokens in one read of the state: the equations of xla_chunked.py with a single chunk."""

import jax
import jax.numpy as jnp
from jax import Array

from pallas_kernels.gated_delta.heads import HeadMap, per_value_head
from pallas_kernels.gated_delta.tokens import Tokens
from pallas_kernels.gated_delta.triangular import decay_ratios, solve_unit_lower


@jax.default_matmul_precision("highest")  # the state adds up what products round
def verify(tokens: Tokens, state: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, Array]:
    """Outputs and u, both [B, T, Hv, Dv] in float32."""
    n_tokens, hv = tokens.v.shape[1:3]
    q, k, v, g, beta = (jnp.moveaxis(x.astype(jnp.float32), 1, 2) for x in tokens)  # [B, H, T, ...]
    log_decay = jnp.cumsum(g, axis=-1)
    decay, from_start = decay_ratios(log_decay), jnp.exp(log_decay)[..., None]
    beta = beta[..., None]
    # Keys and queries go through the state together, so that it is read once.
    both = jnp.concatenate([k, q], axis=2)
    with_keys = per_value_head(jnp.einsum("bhtk,bhik->bhti", both, k), hv, head_map, 1)
    with_state = per_value_head(both, hv, head_map, 1) @ state
    keys_keys, queries_keys = with_keys[:, :, :n_tokens] * decay, with_keys[:, :, n_tokens:] * decay
    keys_state, queries_state = with_state[:, :, :n_tokens], with_state[:, :, n_tokens:]
    u = solve_unit_lower(beta * keys_keys, beta * (v - from_start * keys_state))
    out = scale * (from_start * queries_state + queries_keys @ u)
    return jnp.moveaxis(out, 2, 1), jnp.moveaxis(u, 2, 1)
