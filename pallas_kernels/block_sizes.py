"""What the fields of a kernel's configuration accept, said where they are declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any


def _accepting(accepts: Callable[[int], bool], accepted: str) -> Any:
    return field(metadata={"accepts": accepts, "accepted": accepted})


def one_of(*sizes: int) -> Any:
    """A field that has one of some sizes."""
    return _accepting(lambda size: size in sizes, ", ".join(map(str, sizes)))


def multiple_of(unit: int) -> Any:
    """A field that has a multiple of a size above zero."""
    return _accepting(lambda size: size >= unit and size % unit == 0, f"multiples of {unit}")


def between(first: int, last: int) -> Any:
    """A field that has a size from the first to the last."""
    return _accepting(lambda size: first <= size <= last, f"{first} to {last}")


def at_least_one() -> Any:
    """A field that has any size above zero."""
    return _accepting(lambda size: size >= 1, "at least 1")


def power_of_two(most: int | None = None) -> Any:
    """A field that has a power of two."""
    up_to = "" if most is None else f" up to {most}"
    return _accepting(lambda size: 1 <= size <= (most or size) and not size & (size - 1), f"powers of two{up_to}")


@dataclass(frozen=True)
class BlockSizes:
    """Base of configurations, whose fields are made by the functions above. ValueError for what a field refuses."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if not each.metadata["accepts"](size := getattr(self, each.name)):
                raise ValueError(f"{each.name} is {size}; accepted: {each.metadata['accepted']}")
