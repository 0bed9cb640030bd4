"""Which of a model's drafters a request wants: their names, as users give them, and their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from specjax.errors import SpecjaxError


class UnknownDrafterError(SpecjaxError):
    """A request names a drafter that the model does not have."""


def told_apart(names: Sequence[str]) -> tuple[str, ...]:
    """The names with a number behind those that stand before in the list: "ngram", "ngram-2"."""
    apart: list[str] = []
    for name in names:
        candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
        apart.append(next(candidate for candidate in candidates if candidate not in apart))
    return tuple(apart)


def given_names(given: Any) -> tuple[str, ...] | None:
    """The value of the option `draft_by` as a tuple; None asks for all drafters.

    Raises:
        TypeError: it is neither a text nor a list of texts.
        ValueError: it is empty.
    """
    if given is None:
        return None
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"draft_by is {given!r}; give the name of a drafter, or a list of names")
    if not names:
        raise ValueError("draft_by names no drafter; name at least one, or use draft=0 for plain decoding")
    return tuple(names)


def numbers_of(names: Sequence[str] | None, known: Sequence[str]) -> tuple[int, ...] | None:
    """The numbers of drafters by their names; None for all that there are.

    Args:
        names: see `given_names`.
        known: those of the model's drafters, in their order.

    Raises:
        UnknownDrafterError: there is none of this name; the message lists those that there are.
    """
    if names is None:
        return None
    for name in names:
        if name not in known:
            raise UnknownDrafterError(
                f"draft_by is {name!r}, but the model's drafters are {', '.join(map(repr, known))}; name one of them"
                if known
                else f"draft_by is {name!r}, but the model has no drafter; leave it out"
            )
    numbers = tuple(number for number, name in enumerate(known) if name in names)
    return None if len(numbers) == len(known) else numbers
