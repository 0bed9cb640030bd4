"""The law of the gated delta rule: one token after the other, as the equations say.

Slow on purpose. Everything is computed in the dtype of the state. Equations: Yang et al., "Gated Delta Networks",
arXiv:2412.06464, with q and k normalised by the caller.
"""

import jax.numpy as jnp
from jax import Array

from pallas_kernels.gated_delta.heads import HeadMap, key_head
from pallas_kernels.gated_delta.tokens import Records, Tokens


def _key_heads(given: Tokens | Records, head_map: HeadMap) -> Array:
    hk, hv = given.sizes["Hk"], given.sizes["Hv"]
    return jnp.array([key_head(j, hk, hv, head_map) for j in range(hv)])


def recurrence(
    tokens: Tokens, state: Array, n_valid: Array, *, head_map: HeadMap, scale: float
) -> tuple[Array, Array, list[Array]]:
    """Outputs and u, both [B, T, Hv, Dv], and the state after each token. Rows t >= n_valid[b] change nothing."""
    heads = _key_heads(tokens, head_map)
    tokens = tokens._replace(q=tokens.q[:, :, heads], k=tokens.k[:, :, heads])
    outputs, updates, states = [], [], []
    for t in range(tokens.k.shape[1]):
        q_t, k_t, v_t, g_t, beta_t = (x[:, t].astype(state.dtype) for x in tokens)
        decayed = state * jnp.exp(g_t)[:, :, None, None]
        u_t = beta_t[:, :, None] * (v_t - jnp.sum(decayed * k_t[:, :, :, None], axis=2))
        new = decayed + k_t[:, :, :, None] * u_t[:, :, None, :]
        out_t = scale * jnp.sum(new * q_t[:, :, :, None], axis=2)
        valid = (t < n_valid)[:, None, None]
        state = jnp.where(valid[..., None], new, state)
        outputs.append(jnp.where(valid, out_t, 0))
        updates.append(jnp.where(valid, u_t, 0))
        states.append(state)
    return jnp.stack(outputs, axis=1), jnp.stack(updates, axis=1), states


def prefill(tokens: Tokens, state: Array, n_valid: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, Array]:
    """Outputs and the final state."""
    out, _, states = recurrence(tokens, state, n_valid, head_map=head_map, scale=scale)
    return out, states[-1]


def verify(tokens: Tokens, state: Array, n_valid: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, Array]:
    """The outputs, and the corrections u that `commit` needs."""
    return recurrence(tokens, state, n_valid, head_map=head_map, scale=scale)[:2]


def commit(records: Records, state: Array, n_valid: Array, *, head_map: HeadMap) -> Array:
    """The state after the first n_valid records."""
    (k, u, g), heads = records, _key_heads(records, head_map)
    k = k[:, :, heads].astype(state.dtype)
    for t in range(k.shape[1]):
        new = state * jnp.exp(g[:, t])[:, :, None, None] + k[:, t, :, :, None] * u[:, t, :, None, :]
        state = jnp.where((t < n_valid)[:, None, None, None], new, state)
    return state


def verify_snapshots(
    tokens: Tokens, slots: Array, slot: Array, n_valid: Array, *, head_map: HeadMap, scale: float
) -> tuple[Array, Array]:
    """Outputs and the slots with the newest min(n_valid, M) states written."""
    slots = jnp.asarray(slots)
    state = slots[jnp.arange(slots.shape[0]), slot]
    out, _, states = recurrence(tokens, state, n_valid, head_map=head_map, scale=scale)
    for t, state in enumerate(states):
        for s in range(slots.shape[1]):
            belongs = (n_valid - 1 - t == s)[:, None, None, None]
            slots = slots.at[:, s].set(jnp.where(belongs, state, slots[:, s]))
    return out, slots
