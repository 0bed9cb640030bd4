"""The recurrence as a scan: verification with records or snapshots, and the commit that repeats it from records.

`commit` does the arithmetic of `verify_snapshots` in the same order: on CPU the states of the two agree bit for bit,
unless they are so small that the compiler joins other operations to those of one of them (one head of 8 x 8).
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels.gated_delta.heads import HeadMap, per_value_head
from pallas_kernels.gated_delta.tokens import Records, Tokens


def _time_major(*arrays: Array) -> tuple[Array, ...]:
    return tuple(jnp.moveaxis(x, 1, 0) for x in arrays)


def _per_value_head(tokens: Tokens, head_map: HeadMap) -> Tokens:
    q, k = (per_value_head(x, tokens.v.shape[2], head_map, 2) for x in (tokens.q, tokens.k))
    return tokens._replace(q=q, k=k)


def _decayed(state: Array, g: Array) -> Array:
    return state * jnp.exp(g)[..., None, None]


def _updated(state: Array, k: Array, u: Array) -> Array:
    return state + k[..., :, None] * u[..., None, :]


def _step(state: Array, xs: tuple[Array, ...], scale: float) -> tuple[Array, tuple[Array, Array]]:
    q, k, v, g, beta = (x.astype(jnp.float32) for x in xs)
    state = _decayed(state, g)
    u = beta[..., None] * (v - jnp.einsum("bhk,bhkv->bhv", k, state))
    state = _updated(state, k, u)
    return state, (scale * jnp.einsum("bhk,bhkv->bhv", q, state), u)


def verify(tokens: Tokens, state: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, Array]:
    """Outputs and u, both [B, T, Hv, Dv] in float32."""
    _, (out, u) = _scan(tokens, state, head_map=head_map, scale=scale)
    return out, u


def prefill(tokens: Tokens, state: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, Array]:
    """Outputs in float32 and the final state."""
    state, (out, _) = _scan(tokens, state, head_map=head_map, scale=scale)
    return out, state


@jax.default_matmul_precision("highest")  # the state adds up what products round
def _scan(tokens: Tokens, state: Array, *, head_map: HeadMap, scale: float) -> tuple[Array, tuple[Array, Array]]:
    given = _time_major(*_per_value_head(tokens, head_map))
    state, outputs = lax.scan(lambda state, xs: _step(state, xs, scale), state, given)
    out, u = (jnp.moveaxis(x, 0, 1) for x in outputs)
    return state, (out, u)


def commit(records: Records, state: Array, *, head_map: HeadMap) -> Array:
    """The state with all records applied; a record of zeros changes nothing."""
    k = per_value_head(records.k.astype(jnp.float32), records.u.shape[2], head_map, 2)

    def step(state: Array, xs: tuple[Array, ...]) -> tuple[Array, None]:
        k, u, g = xs
        return _updated(_decayed(state, g), k, u), None

    return lax.scan(step, state, _time_major(k, records.u, records.g))[0]


@jax.default_matmul_precision("highest")  # the state adds up what products round
def verify_snapshots(
    tokens: Tokens, slots: Array, slot: Array, n_valid: Array, *, head_map: HeadMap, scale: float
) -> tuple[Array, Array]:
    """Outputs in float32 and the slots.

    Every row is shifted to end with its last valid token, so that step t of the scan belongs to the same slot in all
    rows and a state is written once, where it stays.
    """
    (n_rows, n_tokens), n_slots = tokens.k.shape[:2], slots.shape[1]
    rows = jnp.arange(n_rows)[:, None]
    source = jnp.arange(n_tokens) - (n_tokens - n_valid)[:, None]

    def shifted(x: Array) -> Array:
        present = (source >= 0).reshape(n_rows, n_tokens, *[1] * (x.ndim - 2))
        return jnp.where(present, x[rows, jnp.maximum(source, 0)], 0)

    def step(carry: tuple[Array, Array], xs: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        state, slots = carry
        age = xs[0]
        state, (out, _) = _step(state, xs[1:], scale)
        index = jnp.minimum(age, n_slots - 1)
        old = lax.dynamic_index_in_dim(slots, index, axis=1, keepdims=False)
        new = jnp.where((age < jnp.minimum(n_valid, n_slots))[:, None, None, None], state, old)
        return (state, lax.dynamic_update_index_in_dim(slots, new, index, axis=1)), out

    ages = jnp.arange(n_tokens - 1, -1, -1)
    slots = jnp.asarray(slots)  # NumPy's arrays cannot be asked for what is known only when the program runs
    carry = (slots[jnp.arange(n_rows), slot], slots)
    (_, slots), out = lax.scan(step, carry, (ages, *_time_major(*map(shifted, _per_value_head(tokens, head_map)))))
    unshifted = jnp.minimum(jnp.arange(n_tokens) + (n_tokens - n_valid)[:, None], n_tokens - 1)
    out = jnp.where((jnp.arange(n_tokens) < n_valid[:, None])[..., None, None], out[unshifted, rows], 0)
    return out, slots
