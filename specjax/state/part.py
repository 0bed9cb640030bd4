"""What every part of a sequence's state answers: how long it can be, how far back it goes, what it drops and keeps.

A part is a layer's cache or recurrent state, or a drafter's state. Whoever handles states (sessions, context shift,
files, batches) asks the parts and does not look at what kind they are. So a new kind of cache is one class.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from specjax.state.content import Content
from specjax.state.shift import Shift


class Window(Protocol):
    """A part of the state that has seen tokens which may still be taken back."""

    def commit(self, n: Int[Array, "B"]) -> Any:
        """The part as it is after the first n tokens."""
        ...


class LayerWindow(Window, Protocol):
    """The window of a layer."""

    def continued(self, later: Any) -> LayerWindow:
        """This window, while a trial goes on from it: `later` is the part after some more tokens on top.

        A window that holds all it needs returns itself. A cache returns `later`, so that no copy of it is made: what
        the trial wrote lies past every length that the window can be committed to.
        """
        ...


class Ring(NamedTuple):
    """A ring buffer: position p is in slot p mod `slots`, and rows read the last `window` positions."""

    slots: int
    window: int

    def floor(self, written: int) -> int:
        """The shortest length above 0 that it can be cut back to after so many positions have been written."""
        return written - self.slots + self.window + 1 if written > self.slots else 0


class Part:
    """A part of the committed state of B sequences: a pytree whose arrays all have the sequences as their first axis.

    What stands here holds for parts that are arrays and other parts. Arrays are taken for a summary of all tokens so
    far: it has room for any number of them, and one can go back only to copies. A part of another kind says otherwise.
    """

    @property
    def limit(self) -> int | None:
        """How many positions have room; None: any number."""
        limits = [part.limit for part in self._inner() if part.limit is not None]
        return min(limits) if limits else None

    @property
    def rings(self) -> tuple[Ring, ...]:
        """The ring buffers. They limit how far back the sequence can be cut, and what can be dropped."""
        return tuple(dict.fromkeys(ring for part in self._inner() for ring in part.rings))

    @property
    def cannot_shift(self) -> str | None:
        """Why tokens cannot be dropped from it, as a clause; None if `shift` does it."""
        return f"{type(self).__name__} does not say how tokens are dropped from it"

    def shift(self, shift: Shift) -> Self:
        """The part without the tokens that `shift` drops. Only where `cannot_shift` is None."""
        raise TypeError(f"tokens cannot be dropped: {self.cannot_shift}")

    def used(self, slots: int) -> Self:
        """The part with only its first `slots` slots: all that must be saved of a sequence of at most that length."""
        return self._map(lambda part: part.used(slots), lambda array: array)

    def kept(self) -> Self:
        """A copy of what is needed to come back to this point. Caches are left out: later writes do no harm."""
        return self._map(lambda part: part.kept(), jnp.copy)

    def restored(self, now: Self) -> Self:
        """The part at the point of `kept`, in arrays of its own. `now` is the present part, which has the caches."""
        return self._map(lambda part, new: part.restored(new), lambda array, _: jnp.copy(array), now)

    def put(self, rows_state: Self, rows: Int[Array, "n"]) -> Self:
        """The part with the n sequences of another one in these rows. Rows out of range are left out."""
        return self._map(
            lambda part, new: part.put(new, rows), lambda old, new: old.at[rows].set(new, mode="drop"), rows_state
        )

    def segments(self) -> Self:
        """What stands side by side on the axis by which each array is split over a mesh: in the array's place the
        lengths, () for one thing alone."""
        return self._map(lambda part: part.segments(), lambda _: ())

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """What later tokens may read of one of the sequences, to compare it with what another state says.

        Args:
            row: of the sequence.
            length: tokens that the sequence has.
        """
        found: list[Content] = []
        for path, leaf in jax.tree.leaves_with_path(self, is_leaf=self._is_inner):
            if self._is_inner(leaf):
                own = leaf.contents(row, length)
            else:
                own = (Content((), np.array([length - 1]), np.asarray(leaf[row])[None]),)
            names = [str(getattr(key, "name", getattr(key, "idx", key))).replace("_", " ") for key in path]
            found += [content.under(*names) for content in own]
        return tuple(found)

    def _inner(self) -> list[Part]:
        """The parts that this one is made of, one level down."""
        leaves = jax.tree.leaves(self, is_leaf=self._is_inner)
        return [leaf for leaf in leaves if self._is_inner(leaf)]

    def _is_inner(self, node: Any) -> bool:
        return node is not self and isinstance(node, Part)

    def _map(self, of_part: Callable[..., Any], of_array: Callable[..., Any], *others: Self) -> Self:
        def one(node: Any, *rest: Any) -> Any:
            return (of_part if isinstance(node, Part) else of_array)(node, *rest)

        return jax.tree.map(one, self, *others, is_leaf=self._is_inner)


def contents_of_layers(parts: Any, row: int, length: int) -> tuple[Content, ...]:
    """The contents of a part, or of several parts, each named by its place: "layer 0", "layer 1"."""
    layers = jax.tree.leaves(parts, is_leaf=lambda node: isinstance(node, Part))
    return tuple(
        content.under(f"layer {index}") for index, part in enumerate(layers) for content in part.contents(row, length)
    )
