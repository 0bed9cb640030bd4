"""Everything a batch of sequences carries, as one value, and the one operation that moves it forward."""

from __future__ import annotations

from typing import Any

from flax import struct
from jaxtyping import Array, Int

from specjax.state.content import Content
from specjax.state.part import LayerWindow, Part, Window, contents_of_layers
from specjax.state.shift import Shift


@struct.dataclass
class SequenceState(Part):
    """The committed state of B sequences.

    Attributes:
        layers: one part per target layer: `KVCache`, `ReplayState`, `SnapshotState` or another.
        drafter: the drafter's own part, or None.
        length: committed tokens per row. The token at position `length` has been chosen but not been fed.
    """

    layers: tuple[Any, ...]
    drafter: Any
    length: Int[Array, "B"]

    @property
    def cannot_shift(self) -> str | None:
        """What stands in the way of the first part that cannot drop tokens."""
        parts = self.layers if self.drafter is None else (*self.layers, self.drafter)
        return next((part.cannot_shift for part in parts if part.cannot_shift), None)

    def shift(self, shift: Shift) -> SequenceState:
        """Drop tokens from every part at once."""
        layers = tuple(layer.shift(shift) for layer in self.layers)
        return SequenceState(layers, None if self.drafter is None else self.drafter.shift(shift), shift.left)

    def contents(self, row: int, length: int | None = None) -> tuple[Content, ...]:
        """The contents of the layers, and then of the drafter's part; the state knows its length itself."""
        own = int(self.length[row])
        layers = contents_of_layers(self.layers, row, own)
        drafter = () if self.drafter is None else self.drafter.contents(row, own)
        return (*layers, *(content.under("drafter") for content in drafter))


@struct.dataclass
class SequenceWindow:
    """A state with up to T more tokens in it, of which `commit` keeps the first n.

    Attributes:
        layers, drafter: one window per part of the state.
        length: committed tokens before the window.
    """

    layers: tuple[LayerWindow, ...]
    drafter: Window | None
    length: Int[Array, "B"]

    def continued(self, state: SequenceState) -> SequenceWindow:
        """This window, while a trial goes on from it, see `LayerWindow.continued`."""
        layers = (window.continued(later) for window, later in zip(self.layers, state.layers, strict=True))
        return SequenceWindow(tuple(layers), self.drafter, self.length)


def commit(window: SequenceWindow, n: Int[Array, "B"]) -> SequenceState:
    """Keep the first n tokens of the window in every part of the state at once.

    Args:
        window: what `verify` (and the drafter's `observe`) returned.
        n: tokens to keep per row: 1 <= n <= the row's valid tokens, or 0 in rows that had none.
    """
    drafter = None if window.drafter is None else window.drafter.commit(n)
    return SequenceState(tuple(layer.commit(n) for layer in window.layers), drafter, window.length + n)
