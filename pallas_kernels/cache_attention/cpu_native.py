"""Attention by the native CPU kernels, from caches of any type.

What is computed for one row does not depend on the other rows, on how many there are, or on the number of threads:
slots are added up in chunks of fixed places, which are merged in order. Only slots that a row sees are read.

Floats are multiplied in float32. Codes of quantized caches are multiplied as integers: queries and weights are rounded
to 15 bits for q8_0 and q4_0. For the turbo types queries and centroids are rounded to 12 bits, and weights to 14. Tests
hold relative errors of the results to 1e-4, for the turbo types to 6e-4, also next to a token that takes nearly all of
the attention.

Derivatives are those of the XLA forms.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels import native
from pallas_kernels.cache_attention import xla_floats, xla_tiles
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.kv_formats.format import pad
from pallas_kernels.table import Dims

_PAD = 16
"""Widths that the kernels see are multiples of it."""


def unfit(dims: Dims) -> str | None:
    """Why the kernels cannot serve a call."""
    if (reason := native.reason()) is not None:
        return reason
    if dims["soft_cap"] is not None or dims["sinks"]:
        return "has neither soft-cap nor sinks"
    return None


def _plain(call: Call) -> Array:
    form = xla_tiles if call.k.kind.quantized or call.v.kind.quantized else xla_floats
    return form.attend(call)


def _attend(call: Call) -> Array:
    v, (*lead, width), rotated = call.v, call.q.shape, call.rotated_queries()
    stored = v.kind.stored_width(width)
    kernel = jax.ffi.ffi_call(
        native.target("specjax_attend"),
        jax.ShapeDtypeStruct((*lead, _padded(stored)), jnp.float32),
        vmap_method="sequential",
    )
    out = kernel(
        pad(rotated, _padded(rotated.shape[-1])),
        call.positions.astype(jnp.int32),
        *_parts(call.k),
        *_parts(v),
        k_type=call.k.format,
        v_type=v.format,
        isa=native.instruction_set(),
        scale=np.float32(call.scale),
        window=np.int64(call.window or 0),
    )
    return v.kind.unrotate(out[..., :stored], width)


def _parts(store: KVStore) -> tuple[Array, Array]:
    return store.parts["codes"], store.parts.get("scales", jnp.zeros((0,), jnp.float16))


def _padded(width: int) -> int:
    return -(-width // _PAD) * _PAD


attend = native.differentiable(_attend, _plain)
"""[B, T, H, N] float32; zeros for a row that sees nothing."""
