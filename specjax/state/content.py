"""What later tokens may read of a sequence's state, so that two states that should be equal can be compared.

States hold more than that: slots that were never written, or that rejected drafts have left behind. What stands there
means nothing, and two states that are equal in all that counts differ in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int, Shaped


class Content(NamedTuple):
    """Values of one kind in one part of one sequence's state, decoded, on the host.

    Attributes:
        path: where it is, from the outside to the inside, such as ("layer 3", "keys").
        positions: of which tokens the rows are, ascending. A sum over all tokens is one row, at the last token.
        rows: the values, one row for each position.
        slots: where the rows stand in a cache; None for what has no slots.
        has_heads: whether the first axis of a row counts heads.
    """

    path: tuple[str, ...]
    positions: Int[np.ndarray, "n"]
    rows: Shaped[np.ndarray, "n *row"]
    slots: Int[np.ndarray, "n"] | None = None
    has_heads: bool = False

    @property
    def name(self) -> str:
        """The path as words, from the outside to the inside."""
        return " ".join(self.path)

    @property
    def sums(self) -> bool:
        """Whether it is one row for all tokens together, or for the last of them."""
        return len(self.positions) == 1 and self.slots is None

    def under(self, *names: str) -> Content:
        """The same, named as a part of something larger."""
        return self._replace(path=(*names, *self.path))
