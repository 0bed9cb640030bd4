"""The gated delta rule by the native CPU kernels: the recurrence, one token after the other.

A state has the same bits however its tokens were grouped into calls, and whether they were run by `prefill` or
committed. Derivatives are those of the XLA forms.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels import native
from pallas_kernels.gated_delta import xla_chunked, xla_recurrent, xla_wy
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.padding import RECORDS, masked, zeroed
from pallas_kernels.table import Dims


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    return native.reason()


def verify(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    *,
    n_valid: Array,
    head_map: HeadMap,
    scale: float,
) -> tuple[Array, Array]:
    """Outputs and u, both [B, T, Hv, Dv] in float32."""
    return _differentiable("verify", head_map, scale, (q, k, v, g, beta, state), (n_valid,))


def prefill(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    state: Array,
    *,
    n_valid: Array,
    head_map: HeadMap,
    scale: float,
) -> tuple[Array, Array]:
    """Outputs in float32 and the final state, in the memory of the one given where that is free."""
    return _differentiable("prefill", head_map, scale, (q, k, v, g, beta, state), (n_valid,))


def verify_snapshots(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    slots: Array,
    slot: Array,
    *,
    n_valid: Array,
    head_map: HeadMap,
    scale: float,
) -> tuple[Array, Array]:
    """Outputs in float32 and the slots, in the memory of those given where that is free."""
    counts = (slot.astype(jnp.int32), n_valid)
    return _differentiable("verify_snapshots", head_map, scale, (q, k, v, g, beta, slots), counts)


def commit(state: Array, k: Array, u: Array, g: Array, *, n_valid: Array, head_map: HeadMap) -> Array:
    """The state after the first n_valid[b] records, in the memory of the one given where that is free."""
    forms = {"cpu": partial(_commit, head_map), "default": partial(_commit_elsewhere, head_map)}
    return jax.lax.platform_dependent(state, k, u, g, n_valid, **forms)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _differentiable(
    operation: str, head_map: HeadMap, scale: float, arrays: tuple[Array, ...], counts: tuple[Array, ...]
) -> tuple[Array, Array]:
    # A program that is lowered here for another platform has no native kernels there.
    forms = {"cpu": _run, "default": _elsewhere}
    forms = {platform: partial(form, operation, head_map, scale) for platform, form in forms.items()}
    return jax.lax.platform_dependent(arrays, counts, **forms)


@_differentiable.defjvp
def _derivative(
    operation: str, head_map: HeadMap, scale: float, primals: tuple, tangents: tuple
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return jax.jvp(partial(_elsewhere, operation, head_map, scale), primals, tangents)


def _elsewhere(
    operation: str, head_map: HeadMap, scale: float, arrays: tuple[Array, ...], counts: tuple[Array, ...]
) -> tuple[Array, Array]:
    *slot, n_valid = counts
    forms = {
        "verify": masked(xla_wy.verify),
        "prefill": masked(xla_chunked.prefill),
        "verify_snapshots": zeroed(xla_recurrent.verify_snapshots),
    }
    return forms[operation](*arrays, *slot, n_valid=n_valid, head_map=head_map, scale=scale)


def _run(
    operation: str, head_map: HeadMap, scale: float, arrays: tuple[Array, ...], counts: tuple[Array, ...]
) -> tuple[Array, Array]:
    *_, v, _, _, states = arrays
    of_values, of_states = (jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (v, states))
    call = jax.ffi.ffi_call(
        native.target(f"specjax_gated_delta_{operation}"),
        (of_values, of_values if operation == "verify" else of_states),
        input_output_aliases=None if operation == "verify" else {5: 1},
        vmap_method="sequential",
    )
    out, second = call(
        *(x.astype(jnp.float32) for x in arrays), *counts, scale=np.float32(scale), **_settings(head_map)
    )
    return out, second


def _commit(head_map: HeadMap, state: Array, k: Array, u: Array, g: Array, n_valid: Array) -> Array:
    call = jax.ffi.ffi_call(
        native.target("specjax_gated_delta_commit"),
        jax.ShapeDtypeStruct(state.shape, jnp.float32),
        input_output_aliases={0: 0},
        vmap_method="sequential",
    )
    return call(state, *(x.astype(jnp.float32) for x in (k, u, g)), n_valid, **_settings(head_map))


def _commit_elsewhere(head_map: HeadMap, state: Array, k: Array, u: Array, g: Array, n_valid: Array) -> Array:
    return masked(xla_recurrent.commit, RECORDS)(state, k, u, g, n_valid=n_valid, head_map=head_map)


def _settings(head_map: HeadMap) -> dict[str, str | bool]:
    return {"isa": native.instruction_set(), "tiled": head_map == "tiled"}
