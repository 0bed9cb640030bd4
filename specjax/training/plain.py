"""Frozen dataclasses from the plain values that JSON holds: the inverse of `dataclasses.asdict`."""

from __future__ import annotations

from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def from_plain(annotation: Any, value: Any) -> Any:
    """The value that an annotation stands for: a dataclass from a dict, a tuple from a list, the rest as it is.

    Args:
        annotation: a dataclass, or what annotates its fields: a plain type, a tuple of one type or of several, such a
            type or None.
        value: what `json.loads` gave.
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not NoneType)
        return None if value is None else from_plain(inner, value)
    if origin is tuple:
        of = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return tuple(from_plain(inner, item) for inner, item in zip(of, value, strict=True))
    if is_dataclass(annotation):
        hints = get_type_hints(annotation)
        return annotation(**{name: from_plain(hints[name], item) for name, item in value.items()})  # type: ignore[operator]
    return value
