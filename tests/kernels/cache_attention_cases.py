"""Calls of attention over caches that every implementation is held to, and their law in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from compiled import read_caches, rotate, stored_caches, unrotate
from scipy.special import softmax

from pallas_kernels.cache_attention.call import Call
from pallas_kernels.kv_formats import FORMATS, KVStore

SCALE = 0.2


def law(
    q: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    positions: np.ndarray,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """By the definition of a cache: the latest position before the row's that falls into a slot stands there."""
    q, keys, values = (x.astype(np.float64) for x in (q, keys, values))
    out = np.zeros((*q.shape[:3], values.shape[-1]))
    per_kv_head, slots = q.shape[2] // keys.shape[2], keys.shape[1]
    for b, t, h in np.ndindex(q.shape[:3]):
        first = 0 if window is None else max(0, positions[b, t] - window + 1)
        seen = np.arange(first, positions[b, t] + 1) % slots
        if len(seen):
            scores = keys[b, seen, h // per_kv_head] @ q[b, t, h] * SCALE
            if soft_cap is not None:
                scores = soft_cap * np.tanh(scores / soft_cap)
            if sinks is not None:
                scores = np.append(scores, sinks[h])
            out[b, t, h] = softmax(scores)[: len(seen)] @ values[b, seen, h // per_kv_head]
    return out


def rounded_weights(impl: str, kind: str) -> str | None:
    """The type to which weights that meet values of a kind are rounded, and queries that meet keys; or None."""
    if impl == "xla_floats":
        return {"f16": "float16", "bf16": "bfloat16"}.get(kind)
    if impl == "xla_decoded":
        return {"f32": None, "f16": "float16"}.get(kind, "bfloat16")
    if impl.startswith(("pallas_tpu", "triton_prefill")):
        return None if kind in ("f32", "f16") else "bfloat16"
    if impl.startswith(("pallas_gpu_prefill", "pallas_gpu_splits")):
        return "float16" if kind == "f16" else "bfloat16"
    return None


def integer_error(*types: str) -> float:
    """A bound on the relative RMS error of what native kernels compute from caches of some types; 0 for floats alone.

    Queries and weights become integers of 15 bits, the latter in chunks of 256 slots. For the turbo types queries and
    centroids have 12, weights 14, in spans of 32 slots.
    """
    return max({"q": 2e-4, "t": 6e-4}.get(name[0], 0.0) for name in types)


def rounded(x: np.ndarray, name: str | None) -> np.ndarray:
    """Numbers as a type holds them, in float32."""
    return x if name is None else x.astype(jnp.dtype(name)).astype(np.float32)


def entries(impl: str, store: KVStore, values: np.ndarray) -> np.ndarray:
    """Rotated vectors of a cache, which `values` are, as an implementation multiplies them.

    Tensor cores get them in 16 bits; TPUs their codes, or the centroids of these, and scale the products.
    """
    name = rounded_weights(impl, store.format)
    if impl.startswith("pallas_tpu") and "scales" in store.parts:
        scales = np.asarray(store.parts["scales"], np.float32)
        scales = np.repeat(np.where(scales == 0, np.float32(1), scales), values.shape[-1] // scales.shape[-1], axis=-1)
        return rounded(values / scales, name) * scales
    return values if impl == "xla_floats" else rounded(values, name)


@dataclass(frozen=True)
class Case:
    """A call; `positions` are [B, T]."""

    k_type: str
    v_type: str
    positions: tuple[tuple[int, ...], ...]
    slots: int
    heads: int = 4
    kv_heads: int = 2
    width: int = 64
    window: int | None = None
    soft_cap: float | None = None
    sinks: tuple[float, ...] | None = None

    @cached_property
    def rows(self) -> np.ndarray:
        """[B, T]."""
        return np.array(self.positions, np.int32)

    @cached_property
    def q(self) -> np.ndarray:
        """[B, T, H, N]."""
        draw = np.random.default_rng(2).normal
        return 3 * draw(size=(*self.rows.shape, self.heads, self.width)).astype(np.float32)

    @cached_property
    def caches(self) -> tuple[KVStore, KVStore]:
        """[B, S, G, N] of any values: a ring may have gone round."""
        rng = np.random.default_rng(1)
        shape = (len(self.rows), self.slots, self.kv_heads, self.width)
        k, v = rng.normal(size=(2, *shape)).astype(np.float32)
        return stored_caches(k, v, k_type=self.k_type, v_type=self.v_type)

    @cached_property
    def vectors(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Keys and values, and both rotated."""
        return jax.tree.map(np.asarray, read_caches(*self.caches))

    def call(self, caches: tuple[KVStore, KVStore] | None = None) -> Call:
        """What implementations take; with other caches where these are given."""
        return Call(self.q, *(caches or self.caches), self.rows, SCALE, **self.options)  # type: ignore[arg-type]

    @cached_property
    def options(self) -> dict[str, object]:
        """What `attend` takes by name."""
        sinks = None if self.sinks is None else np.array(self.sinks, np.float32)
        return {"window": self.window, "soft_cap": self.soft_cap, "sinks": sinks}

    @property
    def dims(self) -> dict[str, object]:
        """What implementations are chosen by."""
        return {
            "B": len(self.rows), "T": self.rows.shape[1], "H": self.heads, "G": self.kv_heads, "N": self.width,
            "S": self.slots, "k_type": self.k_type, "v_type": self.v_type, "soft_cap": self.soft_cap,
            "sinks": self.sinks is not None,
        }  # fmt: skip

    @cached_property
    def want(self) -> np.ndarray:
        """The law's."""
        keys, values = self.vectors[0]
        return law(self.q, keys, values, self.rows, **self.options)  # type: ignore[arg-type]

    def wanted_from(self, impl: str) -> np.ndarray:
        """The law's for queries, keys and values that are rounded as an implementation rounds them: once rotated.

        How far a rounded score is off grows with the score; rounding is no error of a kernel that is made for it.
        """
        (k, v), (keys, values), of_queries = self.caches, self.vectors[1], rounded_weights(impl, self.k_type)
        if of_queries is None and rounded_weights(impl, self.v_type) is None:
            return self.want
        q = rounded(np.asarray(rotate(k.kind, self.q)), of_queries)
        keys, values = entries(impl, k, keys), entries(impl, v, values)
        out = law(q, keys, values, self.rows, **self.options)  # type: ignore[arg-type]
        return np.asarray(unrotate(v.kind, out.astype(np.float32), self.width))

    @cached_property
    def seen(self) -> np.ndarray:
        """[B, S]: whether some row of the sequence sees a slot, by the definition of a cache."""
        seen = np.zeros((len(self.rows), self.slots), bool)
        for b, t in np.ndindex(*self.rows.shape):
            first = 0 if self.window is None else max(0, self.rows[b, t] - self.window + 1)
            seen[b, np.arange(first, self.rows[b, t] + 1) % self.slots] = True
        return seen

    def poisoned(self) -> tuple[KVStore, KVStore]:
        """The caches with NaN in every float of the slots that no row sees."""

        def poison(part: jax.Array) -> np.ndarray:
            poisoned, unseen = np.array(part), ~self.seen
            if part.dtype == jnp.uint16:  # of bfloat16
                poisoned[unseen] = 0x7FC0
            elif jnp.issubdtype(part.dtype, jnp.floating):
                poisoned[unseen] = np.nan
            return poisoned

        k, v = (store.map(poison) for store in self.caches)
        return k, v


def _rows(first: int, count: int, total: int) -> tuple[int, ...]:
    """Positions of a sequence's rows, and -1 for those that are not there."""
    return (*range(first, first + count), *(-1,) * (total - count))


CASES = {
    "floats": Case("f32", "f32", ((5, 6, 7), (-1, -1, -1), (150, 151, -1)), 200),
    "a row on a slot": Case("bf16", "q8_0", ((127,), (128,), (0,)), 160, heads=6, width=32),
    "a ring gone round": Case("q8_0", "bf16", ((3, 4, 5), (166, 167, 168), (1000, 1001, 1002)), 170, window=150),
    "a window in a long cache": Case("q4_0", "q4_0", ((390, 391), (9, 10)), 400, window=20),
    "capped": Case("turbo4", "turbo4", ((3, 33), (38, 39)), 40, width=128, heads=2, kv_heads=1, soft_cap=2.0),
    "sinks": Case("turbo3", "f16", ((3, -1), (38, 39)), 40, width=24, sinks=(0.5, -2.0, 3.0, 30.0)),
    "sixteen rows": Case("f16", "turbo3", (tuple(range(20, 36)),), 40, width=160, soft_cap=20.0, sinks=(1.0,) * 4),
    "two bits": Case("turbo2", "turbo2", ((39,),), 40, width=80, heads=3, kv_heads=3),
    "wide": Case("turbo3", "q8_0", ((38, 39),), 40, width=256, heads=2, kv_heads=1, sinks=(4.0, -1.0)),
    "many heads": Case("q8_0", "turbo3", ((5, 6, 7, 8), (-1, 0, 1, 2)), 40, width=128, heads=8),
    "two bits and floats": Case("turbo2", "f16", ((36, 37, 38, 39),), 40, width=256, heads=2),
    "narrow": Case("bf16", "q4_0", ((5, 6, 7, 8), (-1, 0, 1, 2)), 40, width=24, heads=6),
    "no power of two": Case("turbo4", "f32", ((5, 6, 7, 8),), 40, width=80, heads=2),
    "a prompt and one that goes on": Case("f32", "f32", (_rows(0, 40, 40), _rows(100, 25, 40)), 150),
    "prompts in a ring": Case("q8_0", "bf16", (_rows(150, 20, 20), _rows(0, 20, 20)), 60, window=40),
    "a prompt, capped, with sinks": Case(
        "turbo4", "turbo4", (_rows(0, 18, 18),), 32, width=128, soft_cap=20.0, sinks=(1.0, -3.0, 0.0, 9.0)
    ),
    "prompts in a long cache": Case("bf16", "f16", (_rows(340, 36, 36), _rows(100, 25, 36)), 400, kv_heads=1),
    "a prompt and a window": Case("f16", "bf16", (_rows(370, 20, 20),), 400, kv_heads=1, width=24, window=30),
    "a wide prompt": Case("bf16", "q4_0", (_rows(170, 9, 9),), 190, heads=2, kv_heads=1, width=512),
}
"""All formats, T from 1 to 40, sequences of different lengths, window edges, and rows that see nothing."""

_AT = ((5, 6, 7, 8), (520, 521, 522, 523), (-1, 0, 1, 2))
_ROUND = ((10, 11, 12, 13), (299, 300, 301, 302), (898, 899, 900, 901))
LONG = {
    **{name: Case(name, name, _AT, 600) for name in FORMATS},
    **{f"{name}, a ring gone round": Case(name, name, _ROUND, 300, window=280) for name in ("f32", "q8_0", "turbo3")},
}
"""Several tiles or chunks of slots, in every format; for implementations that are as fast here as anywhere."""
