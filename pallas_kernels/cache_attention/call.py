"""A call of attention as a value, which every implementation takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels.kv_formats import KVStore
from pallas_kernels.table import Dims

_STATIC = {"static": True}
MODEL = ("H", "G", "N", "S", "k_type", "v_type")
"""The sizes of a call that do not depend on how many sequences and rows it has."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Call:
    """The arguments of `attend`, which says what they mean."""

    q: Float[Array, "B T H N"]
    k: KVStore
    v: KVStore
    positions: Int[Array, "B T"]
    scale: float = field(metadata=_STATIC)
    window: int | None = field(default=None, metadata=_STATIC)
    soft_cap: float | None = field(default=None, metadata=_STATIC)
    sinks: Float[Array, " H"] | None = None

    @property
    def dims(self) -> Dims:
        """What implementations are chosen by."""
        (batch, rows, heads, width), (_, capacity, kv_heads, _) = self.q.shape, self.k.shape
        return {
            "B": batch, "T": rows, "H": heads, "G": kv_heads, "N": width, "S": capacity, "k_type": self.k.format,
            "v_type": self.v.format, "window": self.window, "soft_cap": self.soft_cap, "sinks": self.sinks is not None,
        }  # fmt: skip

    def sizes(self, *axes: str) -> Dims:
        """Some of the dims, and those of the model."""
        return {axis: self.dims[axis] for axis in (*axes, *MODEL)}

    @property
    def per_kv_head(self) -> int:
        """Query heads that share a KV head."""
        return self.q.shape[2] // self.k.shape[2]

    def rotated_queries(self) -> Float[Array, "B T H stored"]:
        """In the rotation of the keys, in float32."""
        return self.k.kind.rotate(self.q.astype(jnp.float32))

    def logits(self) -> Float[Array, " H"]:
        """The sinks in float32; minus infinity where there are none."""
        return jnp.full(self.q.shape[2:3], -jnp.inf) if self.sinks is None else self.sinks.astype(jnp.float32)
