"""What a block drafter carries: caches with the target's features, and features that have not been injected yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from specjax.state import Content, Part, Shift, contents_of_layers


class Rows(NamedTuple):
    """Features to be injected; those that are not valid mean nothing."""

    features: Float[Array, "B T features"]
    positions: Int[Array, "B T"]
    valid: Bool[Array, "B T"]


@struct.dataclass
class FeatureState(Part):
    """Caches that hold the features of all committed tokens but for the last `count`, which wait.

    Attributes:
        kv: the caches.
        features: [B, R, features] float32; the first `count` wait.
        count: [B].
    """

    kv: Any
    features: Float[Array, "B R features"]
    count: Int[Array, "B"]

    @property
    def cannot_shift(self) -> None:
        """Nothing is in the way: the features that wait are those of the last tokens."""
        return None

    def shift(self, shift: Shift) -> FeatureState:
        """Drop the tokens from the caches. What waits is newer, and stays."""
        return replace(self, kv=jax.tree.map(lambda cache: cache.shift(shift), self.kv, is_leaf=self._is_inner))

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """The caches up to the features that wait, and these."""
        count = int(self.count[row])
        waiting = Content(
            ("waiting features",), np.arange(length - count, length), np.asarray(self.features[row])[:count]
        )
        return (*contents_of_layers(self.kv, row, length - count), waiting)

    def earliest(self, rows: int) -> FeatureState:
        """With room for fewer features that wait, of which no more may wait."""
        return replace(self, features=self.features[:, :rows])

    def waiting(self, length: Int[Array, "B"]) -> Rows:
        """The features that wait; `length` counts the committed tokens."""
        index = jnp.arange(self.features.shape[1])
        positions = (length - self.count)[:, None] + index
        return Rows(self.features, jnp.maximum(positions, 0), index < self.count[:, None])

    def then(self, features: Float[Array, "B T features"], n_valid: Int[Array, "B"], length: Int[Array, "B"]) -> Rows:
        """The features that wait, and then those of new tokens, of which `n_valid` count."""
        index = jnp.arange(features.shape[1])
        new = Rows(features.astype(jnp.float32), length[:, None] + index, index < n_valid[:, None])
        return jax.tree.map(lambda old, more: jnp.concatenate([old, more], axis=1), self.waiting(length), new)


@struct.dataclass
class FeatureWindow:
    """A state whose features have been injected, and a verified window whose features will wait after `commit`."""

    state: FeatureState
    features: Float[Array, "B T features"]

    def commit(self, n: Int[Array, "B"]) -> FeatureState:
        """Let the first n rows wait. A row with n = 0 keeps what waited before; injecting it again changes nothing."""
        room = self.state.features.shape[1] - self.features.shape[1]
        features = jnp.pad(self.features.astype(jnp.float32), ((0, 0), (0, room), (0, 0)))
        idle = n == 0
        return FeatureState(
            kv=self.state.kv,
            features=jnp.where(idle[:, None, None], self.state.features, features),
            count=jnp.where(idle, self.state.count, n),
        )
