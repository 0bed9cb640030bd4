"""Dropping the oldest tokens of a sequence: what stays moves to earlier positions, in every part of the state at once.

Nothing is computed anew. In the layers above the first, what stays has seen the tokens that go, and keeps what it made
of them: a shifted state is not that of a text which never had them. That is what llama.cpp's context shift gives, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class Cut(NamedTuple):
    """What one sequence drops, as plain numbers: `drop` tokens after the first `keep`."""

    keep: int
    drop: int

    def left_of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens that are left after the cut."""
        return (*tokens[: self.keep], *tokens[self.keep + self.drop :])


class Shift(NamedTuple):
    """Which tokens each row drops. A row that drops none does not change by a bit.

    Attributes:
        keep: tokens at the start that stay where they are.
        drop: tokens after these that go.
        length: tokens that the state holds before.
    """

    keep: Int[Array, "B"]
    drop: Int[Array, "B"]
    length: Int[Array, "B"]

    @property
    def left(self) -> Int[Array, "B"]:
        """Tokens that the state holds afterwards."""
        return self.length - self.drop

    def sources(self, positions: Int[Array, "B S"]) -> Int[Array, "B S"]:
        """For each position after the shift: the position that its entry had before."""
        return positions + jnp.where(positions < self.keep[:, None], 0, self.drop[:, None])
