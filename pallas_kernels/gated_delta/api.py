"""The gated delta rule's public functions.

Per token and value head: S *= exp(g); u = beta * (v - S^T k); S += k u^T; out = scale * S^T q.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels.gated_delta import xla
from pallas_kernels.gated_delta.layout import HeadMap, mask_padding, valid_rows


class Records(NamedTuple):
    """What `commit` needs of each verified token."""

    k: Float[Array, "B T Hk Dk"]
    u: Float[Array, "B T Hv Dv"]
    g: Float[Array, "B T Hv"]


def prefill(
    q: Float[Array, "B T Hk Dk"],
    k: Float[Array, "B T Hk Dk"],
    v: Float[Array, "B T Hv Dv"],
    g: Float[Array, "B T Hv"],
    beta: Float[Array, "B T Hv"],
    state: Float[Array, "B Hv Dk Dv"],
    *,
    n_valid: Int[Array, " B"] | None = None,
    head_map: HeadMap = "tiled",
    scale: float | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T Hv Dv"], Float[Array, "B Hv Dk Dv"]]:
    """Many tokens at once: outputs and the state after the last valid one."""
    q, k, v, g, beta = mask_padding(valid_rows(n_valid, q.shape[1]), q, k, v, g, beta)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out, state = xla.prefill_chunked(q, k, v, g, beta, state, head_map=head_map, scale=scale)
    return out.astype(v.dtype), state


def verify(
    q: Float[Array, "B T Hk Dk"],
    k: Float[Array, "B T Hk Dk"],
    v: Float[Array, "B T Hv Dv"],
    g: Float[Array, "B T Hv"],
    beta: Float[Array, "B T Hv"],
    state: Float[Array, "B Hv Dk Dv"],
    *,
    n_valid: Int[Array, " B"] | None = None,
    head_map: HeadMap = "tiled",
    scale: float | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T Hv Dv"], Records]:
    """A few tokens whose number accepted is not known yet: outputs, and records for `commit`."""
    q, k, v, g, beta = mask_padding(valid_rows(n_valid, q.shape[1]), q, k, v, g, beta)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    out, u = xla.verify_wy(q, k, v, g, beta, state, head_map=head_map, scale=scale)
    return out.astype(v.dtype), Records(k, u, g.astype(jnp.float32))


def commit(
    state: Float[Array, "B Hv Dk Dv"], records: Records, n: Int[Array, " B"], *, head_map: HeadMap = "tiled"
) -> Float[Array, "B Hv Dk Dv"]:
    """The state after the first n[b] recorded tokens."""
    return xla.commit_serial(state, *records, n, head_map=head_map)


def verify_snapshots(
    q: Float[Array, "B T Hk Dk"],
    k: Float[Array, "B T Hk Dk"],
    v: Float[Array, "B T Hv Dv"],
    g: Float[Array, "B T Hv"],
    beta: Float[Array, "B T Hv"],
    slots: Float[Array, "B M Hv Dk Dv"],
    slot: Int[Array, " B"],
    *,
    n_valid: Int[Array, " B"] | None = None,
    head_map: HeadMap = "tiled",
    scale: float | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T Hv Dv"], Float[Array, "B M Hv Dk Dv"]]:
    """Reads slots[b, slot[b]]; slot s of the result holds the state s tokens before the newest."""
    n_rows, n_tokens = q.shape[:2]
    q, k, v, g, beta = mask_padding(valid_rows(n_valid, n_tokens), q, k, v, g, beta)
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    rows = jnp.arange(n_rows)
    out, _, states = xla.verify_recurrent(q, k, v, g, beta, slots[rows, slot], head_map=head_map, scale=scale)
    n = jnp.full((n_rows,), n_tokens) if n_valid is None else n_valid
    age = jnp.arange(slots.shape[1])
    picked = states[jnp.maximum(n[:, None] - 1 - age, 0), rows[:, None]]
    slots = jnp.where((age < n[:, None])[..., None, None, None], picked, slots)
    return out.astype(v.dtype), slots
