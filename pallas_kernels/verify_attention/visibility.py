"""Which slots of a cache a row sees: position p stands in slot p, or in slot p mod S where there is a window."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int


def visible_slots(positions: Int[Array, "B T"], slots: Int[Array, "n"], capacity: int, window: int | None) -> Array:
    """[B, T, n]: whether the row at a position sees a slot: its own and those before, as far back as the window goes.

    Args:
        positions: of the rows; a row at -1 sees nothing.
        slots: of a cache of `capacity`.
        window: how many positions a row sees, itself included; None for all, where slots are not used again.
    """
    rows = positions[:, :, None]
    if window is None:
        return slots <= rows
    return (rows - slots) % capacity < jnp.minimum(window, rows + 1)


def slots_in_use(positions: Int[Array, "B T"], capacity: int) -> Int[Array, ""]:
    """No row sees a slot from this one on."""
    return jnp.clip(jnp.max(positions) + 1, 0, capacity)


def as_mask(positions: Int[Array, "B T"], capacity: int, window: int | None) -> Bool[Array, "B T S"]:
    """`visible_slots` of the whole cache."""
    return visible_slots(positions, jnp.arange(capacity), capacity, window)
