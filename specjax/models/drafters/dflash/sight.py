"""What the slots of a block see: how the programs that train block drafters mask their attention.

A layer without a window sees all the context. In one with a window of w, slot i of a block that begins at position n
sees of the context, that is of positions below n:

| window from | positions | as in |
| --- | --- | --- |
| "slot" | n + i - w + 1 and later | SpecForge's training, llama.cpp |
| "block" | n - w and later | speculators |

Of the block a slot sees all, or, where the layer is causal, itself and the slots before it. llama.cpp limits this by
the window too, which only matters for windows shorter than a block.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int


class Sight(NamedTuple):
    """Which positions the slots of a block see in a layer.

    Attributes:
        first, last: of each slot, both included.
    """

    first: Int[Array, "B S"]
    last: Int[Array, "B S"]


def sight(positions: Int[Array, "B S"], window: int | None, window_from: str, *, causal: bool) -> Sight:
    """What slots at these positions see, the first of which is the block's."""
    start = positions[:, :1]
    last = positions if causal else jnp.broadcast_to(positions[:, -1:], positions.shape)
    if window is None:
        return Sight(jnp.zeros_like(positions), last)
    first = jnp.minimum(positions - window + 1, start) if window_from == "slot" else start - window
    return Sight(jnp.broadcast_to(jnp.maximum(first, 0), positions.shape), last)
