"""Attention over caches: at their ends, round a ring; ragged, with NaN in the slots that no row sees."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from pallas_kernels import cache_attention
from pallas_kernels.cache_attention import reference
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.implementations import CACHE_ATTENTION
from pallas_kernels.cache_attention.visibility import as_mask
from pallas_kernels.cases.case import Case, Given, Outcome
from pallas_kernels.kv_formats import KVStore
from pallas_kernels.random_numbers import normal
from pallas_kernels.table import Dims

_NAN_OF_BFLOAT16 = 0x7FC0
_ROWS_OF_THE_LAW = 4
"""So many of a prompt's rows are compared: the reference takes memory for each."""


def attention(dims: Dims) -> Case:
    """The dims are those of a call of `attend`; B, window, soft_cap and sinks may be missing."""
    batch, rows, capacity, window = dims.get("B", 1), dims["T"], dims["S"], dims.get("window")
    heads, groups, width = dims["H"], dims["G"], dims["N"]
    scale, soft_cap = width**-0.5, dims.get("soft_cap")
    by_reference = jax.jit(reference.attend)
    compared = np.unique(np.linspace(0, rows - 1, min(rows, _ROWS_OF_THE_LAW)).astype(int))

    def make(seed: int) -> Given:
        k, v = (
            jax.jit(partial(KVStore.of, format=dims[name]))(normal(seed + i, batch, capacity, groups, width))
            for i, name in enumerate(("k_type", "v_type"))
        )
        end = capacity if window is None else 2 * capacity + capacity // 3
        positions = jnp.broadcast_to(jnp.arange(end - rows, end, dtype=jnp.int32), (batch, rows))
        sinks = normal(seed + 2, heads) if dims.get("sinks") else None
        return Given(normal(seed + 3, batch, rows, heads, width), fixed=(k, v, positions, sinks))

    def call(impl: str | None, given: Given) -> Outcome:
        k, v, positions, sinks = given.fixed
        settings = {"scale": scale, "window": window, "soft_cap": soft_cap, "sinks": sinks}
        return Outcome(cache_attention.attend(given.x, k, v, positions, **settings, impl=impl))

    def cruel(given: Given) -> tuple[Given, Given]:
        k, v, _, sinks = given.fixed
        positions = jnp.asarray(_ragged(batch, rows, capacity, window))
        unseen = ~as_mask(positions, capacity, window).any(axis=1)
        poisoned = (store.map(lambda part: _with_nan(part, unseen)) for store in (k, v))
        return (
            given._replace(fixed=(*poisoned, positions, sinks)),
            given._replace(fixed=(k, v, positions, sinks)),
        )

    def judged(given: Given, outcome: Outcome) -> Array:
        """A row that sees nothing may be any finite numbers."""
        out, idle = outcome.results[:, compared], given.fixed[2][:, compared, None, None] < 0
        return jnp.where(idle & jnp.isfinite(out), 0, out)

    def law(given: Given, finite: Given) -> Array:
        k, v, positions, sinks = finite.fixed
        few = Call(finite.x[:, compared], k, v, positions[:, compared], scale, window, soft_cap, sinks)
        return by_reference(few)

    def in_use(given: Given) -> Given:
        """Half of the cache, where it is no ring."""
        k, v, positions, sinks = given.fixed
        half = positions if window is not None else positions - min(capacity // 2, capacity - rows)
        return given._replace(fixed=(k, v, half, sinks))

    return Case(CACHE_ATTENTION, dims, make, call, cruel, judged, law, in_use)


def _ragged(batch: int, rows: int, capacity: int, window: int | None) -> np.ndarray:
    """[B, T] positions: sequences of several lengths, of which some are idle, each without its last row."""
    starts = [capacity // 3, 0, -rows] if window is None else [window // 3, 3 * capacity + 1, -rows]
    positions = np.array([[start + row for row in range(rows)] for start in np.resize(starts, batch)], np.int32)
    if rows > 1:
        positions[:, -1] = -1
    return np.clip(positions, -1, capacity - 1 if window is None else None)


def _with_nan(part: Array, where: Array) -> Array:
    """A part of a cache with NaN in some slots, [B, S], if it has floats. bfloat16 is kept as integers."""
    if part.dtype == jnp.uint16:
        return jnp.where(where[..., None, None], jnp.uint16(_NAN_OF_BFLOAT16), part)
    if jnp.issubdtype(part.dtype, jnp.floating):
        return jnp.where(where[..., None, None], jnp.nan, part).astype(part.dtype)
    return part
