"""The gated delta rule by the native CPU kernels: the recurrence, one token after the other.

A state has the same bits however its tokens were grouped into calls, and whether they were run by `prefill` or
committed. Derivatives are those of the XLA forms.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels import native
from pallas_kernels.gated_delta import xla_chunked, xla_recurrent, xla_wy
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.padding import masked, zeroed
from pallas_kernels.gated_delta.tokens import Records, Tokens
from pallas_kernels.table import Dims


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    return native.reason()


def _run(operation: str, tokens: Tokens, states: Array, *counts: Array, head_map: HeadMap, scale: float) -> Any:
    of_values, of_states = (jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in (tokens.v, states))
    call = jax.ffi.ffi_call(
        native.target(f"specjax_gated_delta_{operation}"),
        (of_values, of_values if operation == "verify" else of_states),
        input_output_aliases=None if operation == "verify" else {5: 1},
        vmap_method="sequential",
    )
    given = (x.astype(jnp.float32) for x in (*tokens, states))
    out, second = call(*given, *counts, scale=np.float32(scale), **_settings(head_map))
    return out, second


def _commit(records: Records, state: Array, n_valid: Array, *, head_map: HeadMap) -> Array:
    call = jax.ffi.ffi_call(
        native.target("specjax_gated_delta_commit"),
        jax.ShapeDtypeStruct(state.shape, jnp.float32),
        input_output_aliases={0: 0},
        vmap_method="sequential",
    )
    return call(state, *(x.astype(jnp.float32) for x in records), n_valid, **_settings(head_map))


def _settings(head_map: HeadMap) -> dict[str, str | bool]:
    return {"isa": native.instruction_set(), "tiled": head_map == "tiled"}


verify = native.differentiable(partial(_run, "verify"), masked(xla_wy.verify))
"""Outputs and u, both [B, T, Hv, Dv] in float32."""
prefill = native.differentiable(partial(_run, "prefill"), masked(xla_chunked.prefill))
"""Outputs in float32 and the final state, in the memory of the one given where that is free."""
verify_snapshots = native.differentiable(partial(_run, "verify_snapshots"), zeroed(xla_recurrent.verify_snapshots))
"""Outputs in float32 and the slots, in the memory of those given where that is free."""
commit = native.differentiable(_commit, masked(xla_recurrent.commit))
"""The state after the first n_valid[b] records, in the memory of the one given where that is free."""
