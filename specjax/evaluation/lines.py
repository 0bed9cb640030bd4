"""Files with one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from specjax.errors import PromptError


def lines_of(data: bytes, name: str) -> Iterator[tuple[str, str]]:
    """The lines that are not empty, each with its place, "file:line". A byte order mark at the start is passed over.

    Raises:
        PromptError: they are not UTF-8.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not UTF-8 text: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield line, f"{name}:{number}"


def object_of(line: str, place: str, example: str) -> dict[str, Any]:
    """What a line says.

    Raises:
        PromptError: it is no JSON object; the message shows the example.
    """
    try:
        entry = json.loads(line)
        json.dumps(entry, allow_nan=False)  # NaN and numbers that are too large are read, but JSON has no such values
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{place} is not JSON: {error}") from error
    if not isinstance(entry, dict):
        raise PromptError(f"{place}: each line must be an object such as {example}")
    return entry
