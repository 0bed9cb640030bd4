"""How many numbers the parameters of a model are."""

from __future__ import annotations

import math
from typing import Any

import jax


def count(shapes: Any) -> int:
    """The sizes of all leaves together, for arrays as for shapes alone."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
