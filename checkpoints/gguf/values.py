"""Metadata values of GGUF files with the types that they have there.

A file distinguishes twelve types of values where Python has four; what is copied from file to file keeps its type.
Format: ggml-org/ggml `docs/gguf.md`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args, get_origin

from gguf import GGUFValueType

from checkpoints.errors import CheckpointError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Codes of `struct` for the value types of numbers."""


_IN_WORDS = {int: "whole number", float: "number", str: "text"}


@dataclass(frozen=True)
class GGUFValue:
    """A value of a key.

    Attributes:
        value: a number, a bool, a text, or a list of one of these.
        kind: its type in the file.
        items: that of the list's items; None if it is no list.
    """

    value: Any
    kind: GGUFValueType
    items: GGUFValueType | None = None


def value_of(
    metadata: Mapping[str, Any], key: str, kind: Any, where: str, error: type[CheckpointError], default: Any = None
) -> Any:
    """The value of a key, with the type that it must have.

    Args:
        metadata: keys and their values.
        key: which of them.
        kind: int, float or str, or a list of one of these, such as `list[int]`. A whole number is a float too.
        where: the file's name, for messages.
        error: what is raised.
        default: is returned if there is no such key.

    Raises:
        CheckpointError: of the class `error`: the value is of another type.
    """
    if key not in metadata:
        return default
    value, is_list = metadata[key], get_origin(kind) is list
    item = get_args(kind)[0] if is_list else kind
    allowed = {int, float} if item is float else {item}
    if isinstance(value, list) == is_list and {*map(type, value if is_list else [value])} <= allowed:
        return value
    wanted = f"a list of {_IN_WORDS[item]}s" if is_list else f"a {_IN_WORDS[item]}"
    raise error(f"{where}: {key} is {str(value)[:60]!r}; it must be {wanted}: convert the file again")


def typed(key: str, value: Any) -> GGUFValue:
    """A value of Python with the type that llama.cpp's converter gives to such a one.

    Args:
        key: the key, for messages.
        value: bool, int, float or str, or a list of one of them that is not empty. A number becomes a uint32 or the
            narrowest type of more bits that holds it, one in a list an int32; a float becomes a float32.

    Raises:
        CheckpointError: anything else.
    """
    if isinstance(value, GGUFValue):
        return value
    if isinstance(value, (list, tuple)):
        kinds = {_kind(item, in_list=True) for item in value}
        if kinds == {GGUFValueType.INT32, GGUFValueType.INT64}:
            kinds = {GGUFValueType.INT64}
        if len(kinds) == 1 and (kind := kinds.pop()) is not None:
            return GGUFValue(list(value), GGUFValueType.ARRAY, kind)
    elif (kind := _kind(value, in_list=False)) is not None:
        return GGUFValue(value, kind)
    raise CheckpointError(
        f"metadata key {key}: cannot write {value!r}: it is neither a bool, int, float or str, nor a list of one type"
    )


def encode(key: str, value: GGUFValue) -> bytes:
    """The bytes of a key and its value in a file.

    Raises:
        CheckpointError: the value does not fit its type.
    """
    head = _text(key) + struct.pack("<I", value.kind)
    try:
        if value.items is None:
            return head + _encode(value.kind, [value.value])
        return head + struct.pack("<IQ", value.items, len(value.value)) + _encode(value.items, value.value)
    except (struct.error, OverflowError, TypeError, AttributeError, KeyError) as error:
        kind = value.kind if value.items is None else value.items
        raise CheckpointError(f"metadata key {key}: {str(value.value)[:60]} is no {kind.name}: {error}") from error


def _kind(value: Any, *, in_list: bool) -> GGUFValueType | None:
    match value:
        case bool():
            return GGUFValueType.BOOL
        case int():
            unsigned = (GGUFValueType.UINT32, GGUFValueType.UINT64)
            signed = (GGUFValueType.INT32, GGUFValueType.INT64)
            for kind in signed if in_list or value < 0 else unsigned:
                bits, sign = (64 if kind.name.endswith("64") else 32), kind in signed
                if -(sign << (bits - 1)) <= value < 1 << (bits - sign):
                    return kind
            return None
        case float():
            return GGUFValueType.FLOAT32
        case str():
            return GGUFValueType.STRING
    return None


def _encode(kind: GGUFValueType, items: list[Any]) -> bytes:
    if kind == GGUFValueType.STRING:
        return b"".join(map(_text, items))
    return struct.pack(f"<{len(items)}{SCALARS[kind]}", *items)


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw
