"""Which slots of a cache a row sees: position p stands in slot p, or in slot p mod S where there is a window."""

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int


def spans(
    positions: Int[Array, "B T"], capacity: int, window: int | None
) -> tuple[Int[Array, "B T"], Int[Array, "B T"]]:
    """For each row the slot of its own position, and how many slots it sees from there backwards.

    The slot before the first is the last. A row at -1 sees none.
    """
    positions = positions.astype(jnp.int32)  # p + 1 must not overflow, nor -1 be lost
    if window is None:
        return jnp.clip(positions, 0, capacity - 1), jnp.clip(positions + 1, 0, capacity)
    return positions % capacity, jnp.clip(positions + 1, 0, min(window, capacity))


def in_span(own: Array, reach: Array, slots: Array, capacity: int) -> Array:
    """Whether slots are among the `reach` ones from `own` backwards, element by element."""
    behind = own - slots
    return jnp.where(behind < 0, behind + capacity, behind) < reach


def visible_slots(positions: Int[Array, "B T"], slots: Int[Array, "n"], capacity: int, window: int | None) -> Array:
    """[B, T, n]: whether the row at a position sees a slot: its own and those before, as far back as the window goes.

    Args:
        positions: of the rows; a row at -1 sees nothing.
        slots: of a cache of `capacity`.
        window: how many positions a row sees, itself included; None for all, where slots are not used again.
    """
    own, reach = (x[:, :, None] for x in spans(positions, capacity, window))
    return in_span(own, reach, slots, capacity)


def visible_tiles(positions: Int[Array, "B T"], tile: int, capacity: int, window: int | None) -> Bool[Array, "B n"]:
    """Whether some row of a sequence sees a slot of each tile of a cache; the last tile may be shorter."""
    own, reach = (x[:, :, None] for x in spans(positions, capacity, window))
    first = jnp.arange(0, capacity, tile)
    last = jnp.minimum(first + tile, capacity) - 1
    inside = (first <= own) & (own <= last)
    return jnp.any(jnp.where(inside, reach > 0, in_span(own, reach, last, capacity)), axis=1)


def slots_in_use(positions: Int[Array, "B T"], capacity: int) -> Int[Array, ""]:
    """The number of slots in use: no row sees this slot or a later one."""
    return jnp.clip(jnp.max(positions.astype(jnp.int32)) + 1, 0, capacity)


def as_mask(positions: Int[Array, "B T"], capacity: int, window: int | None) -> Bool[Array, "B T S"]:
    """`visible_slots` of the whole cache."""
    return visible_slots(positions, jnp.arange(capacity), capacity, window)
