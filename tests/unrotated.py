"""A cache of a kind that the project does not have: nothing knows of it, and everything works with it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from specjax.state import Part, Shift
from specjax.state.rotation import apply_rope


@struct.dataclass
class Unrotated(Part):
    """The law of context shift: keys without a rotation, each where its token stands now. To drop some is to omit them.

    It keeps every position, also for a layer with a window.
    """

    unrotated: jax.Array
    v: jax.Array
    frequencies: jax.Array
    window: int | None = struct.field(pytree_node=False, default=None)

    @property
    def limit(self) -> int:
        return self.v.shape[1]

    def rotating(self, frequencies: jax.Array) -> Unrotated:
        return replace(self, frequencies=jnp.broadcast_to(frequencies, self.frequencies.shape))

    def append(self, k: jax.Array, v: jax.Array, positions: jax.Array, valid: jax.Array) -> Unrotated:
        at = jnp.arange(k.shape[0])[:, None], jnp.where(valid, positions, self.limit)
        k = apply_rope(k, -positions, self.frequencies[:, None])
        return replace(self, unrotated=self.unrotated.at[at].set(k, mode="drop"), v=self.v.at[at].set(v, mode="drop"))

    def attend(self, q: jax.Array, positions: jax.Array, *, scale: float) -> jax.Array:
        slots = jnp.broadcast_to(jnp.arange(self.limit), self.v.shape[:2])
        k = apply_rope(self.unrotated, slots, self.frequencies[:, None])
        back = positions[:, :, None] - jnp.arange(self.limit)
        seen = (back >= 0) & ((self.window is None) | (back < (self.window or 0)))
        grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[3])
        scores = jnp.einsum("btgrn,bsgn->bgrts", grouped, k) * scale
        weights = jax.nn.softmax(jnp.where(seen[:, None, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("bgrts,bsgn->btgrn", weights, jnp.nan_to_num(self.v)).reshape(q.shape)

    def commit(self, n: jax.Array) -> Unrotated:
        return self

    def continued(self, later: Unrotated) -> Unrotated:
        return later

    def used(self, slots: int) -> Unrotated:
        return replace(self, unrotated=self.unrotated[:, :slots], v=self.v[:, :slots])

    def kept(self) -> Unrotated:
        return Unrotated((), (), (), self.window)  # type: ignore[arg-type]

    def restored(self, now: Unrotated) -> Unrotated:
        return jax.tree.map(jnp.copy, now)

    def put(self, rows_state: Unrotated, rows: jax.Array) -> Unrotated:
        slots = rows_state.limit
        return Unrotated(
            self.unrotated.at[rows, :slots].set(rows_state.unrotated),
            self.v.at[rows, :slots].set(rows_state.v),
            self.frequencies.at[rows].set(rows_state.frequencies),
            self.window,
        )

    @property
    def cannot_shift(self) -> None:
        return None

    def shift(self, shift: Shift) -> Unrotated:
        slots = jnp.broadcast_to(jnp.arange(self.limit), self.v.shape[:2])
        stays = jnp.minimum(shift.sources(slots), self.limit - 1)[..., None, None]
        unrotated, v = (jnp.take_along_axis(x, stays, axis=1) for x in (self.unrotated, self.v))
        return replace(self, unrotated=unrotated, v=v)
