"""Everything a batch of sequences carries, as one value, and the one operation that moves it forward."""

from __future__ import annotations

from typing import Any, Protocol

from flax import struct
from jaxtyping import Array, Int

from specjax.state.kv import KVCache


class Window(Protocol):
    """A part of the state that has seen tokens which may still be taken back."""

    def commit(self, n: Int[Array, "B"]) -> Any:
        """The part as it is after the first n tokens."""
        ...


@struct.dataclass
class SequenceState:
    """The committed state of B sequences.

    Attributes:
        layers: one entry per target layer: `KVCache`, `ReplayState` or `SnapshotState`.
        drafter: the drafter's own state, or None.
        length: committed tokens per row. The token at position `length` has been chosen but not been fed.
    """

    layers: tuple[Any, ...]
    drafter: Any
    length: Int[Array, "B"]


@struct.dataclass
class SequenceWindow:
    """A state with up to T more tokens in it, of which `commit` keeps the first n.

    Attributes:
        layers, drafter: one `Window` per part of the state.
        length: committed tokens before the window.
    """

    layers: tuple[Window, ...]
    drafter: Window | None
    length: Int[Array, "B"]


def with_later_caches(window: SequenceWindow, state: SequenceState) -> SequenceWindow:
    """The window with the KV caches of a state that was continued from it.

    What the state's further tokens wrote lies past every length that the window can be committed to. So the window can
    be continued on a trial basis without a copy of its caches.
    """
    layers = (
        later if isinstance(layer, KVCache) else layer for layer, later in zip(window.layers, state.layers, strict=True)
    )
    return SequenceWindow(tuple(layers), window.drafter, window.length)


def commit(window: SequenceWindow, n: Int[Array, "B"]) -> SequenceState:
    """Keep the first n tokens of the window in every part of the state at once.

    Args:
        window: what `verify` (and the drafter's `observe`) returned.
        n: tokens to keep per row: 1 <= n <= the row's valid tokens, or 0 in rows that had none.
    """
    drafter = None if window.drafter is None else window.drafter.commit(n)
    return SequenceState(tuple(layer.commit(n) for layer in window.layers), drafter, window.length + n)
