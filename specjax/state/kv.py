"""Key and value caches of attention layers. A cache knows no length: positions come from the sequence's state."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int


@struct.dataclass
class KVCache:
    """Keys (rotated) and values; the entry of position p stands in slot p.

    Entries past the committed length are never read: attention masks them by position, and they are overwritten
    when the sequence gets there. So a rollback needs no work, and `commit` returns the cache as it is.

    Attributes:
        k, v: [B, S, G, N].
    """

    k: Float[Array, "B S G N"]
    v: Float[Array, "B S G N"]

    @classmethod
    def zeros(cls, batch: int, capacity: int, kv_heads: int, width: int, dtype: jnp.dtype) -> KVCache:
        """An empty cache with S = `capacity` slots."""
        shape = (batch, capacity, kv_heads, width)
        return cls(k=jnp.zeros(shape, dtype), v=jnp.zeros(shape, dtype))

    @property
    def capacity(self) -> int:
        """S, the number of slots."""
        return self.k.shape[1]

    def append(
        self,
        k: Float[Array, "B T G N"],
        v: Float[Array, "B T G N"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
    ) -> KVCache:
        """Write the valid rows at their positions. Rows that are not valid, or past the capacity, are dropped."""
        slots = jnp.where(valid, positions, self.capacity)
        rows = jnp.arange(k.shape[0])[:, None]
        return KVCache(
            k=self.k.at[rows, slots].set(k.astype(self.k.dtype), mode="drop"),
            v=self.v.at[rows, slots].set(v.astype(self.v.dtype), mode="drop"),
        )

    def commit(self, n: Int[Array, "B"]) -> KVCache:
        """Nothing moves: the length, which lives with the sequence, decides what is read."""
        del n
        return self
