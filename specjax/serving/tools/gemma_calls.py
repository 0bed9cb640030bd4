"""Calls of Gemma 4: `<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`.

Texts stand between `<|"|>`. Numbers, true, false and null stand as they are; lists and objects nest. Source: Google's
page "Function calling with Gemma 4" and the models' chat templates.
"""

from __future__ import annotations

import json
import re
from typing import Any

from specjax.serving.tools.call import Call, Schemas, call_of

QUOTE = '<|"|>'
_BETWEEN = re.compile(r"<\|tool_call>\s*call:([\w.-]+)\s*(\{.*?\})\s*(?:<tool_call\|>|$)", re.DOTALL)
_KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:")
_PLAIN = re.compile(r"[^,\]}]*")
_DEEPEST = 32


class GemmaCalls:
    """How Gemma 4 writes calls."""

    openers = ("<|tool_call>",)
    marks = ("<|tool_call>", "<tool_call|>", QUOTE)

    def calls(self, text: str, schemas: Schemas) -> list[Call] | None:
        calls = []
        for name, body in _BETWEEN.findall(text):
            try:
                arguments, end = _value(body, 0, 0)
            except ValueError:
                return None
            if body[end:].strip():
                return None
            calls.append(call_of(name, arguments))
        return calls or None


def _value(text: str, at: int, depth: int) -> tuple[Any, int]:
    """The value that begins at a place, and where it ends.

    Raises:
        ValueError: there is none.
    """
    if depth > _DEEPEST:
        raise ValueError(f"values are nested deeper than {_DEEPEST}")
    at += len(text[at:]) - len(text[at:].lstrip())
    if text.startswith(QUOTE, at):
        end = text.index(QUOTE, at + len(QUOTE))
        return text[at + len(QUOTE) : end], end + len(QUOTE)
    if text.startswith("{", at):
        return _object(text, at + 1, depth)
    if text.startswith("[", at):
        return _list(text, at + 1, depth)
    plain = _PLAIN.match(text, at)
    assert plain is not None
    word = plain[0].strip()
    try:
        return json.loads(word), plain.end()
    except ValueError:
        return word, plain.end()


def _object(text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    while (at := _skipped(text, at)) < len(text):
        if text[at] == "}":
            return members, at + 1
        quoted = text.startswith(QUOTE, at)
        if quoted:
            key, at = _value(text, at, depth + 1)
            at = text.index(":", at) + 1
        else:
            found = _KEY.match(text, at)
            if found is None:
                raise ValueError("a key is missing")
            key, at = found[1], found.end()
        members[key], at = _value(text, at, depth + 1)
    raise ValueError("an object has no end")


def _list(text: str, at: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    while (at := _skipped(text, at)) < len(text):
        if text[at] == "]":
            return values, at + 1
        value, at = _value(text, at, depth + 1)
        values.append(value)
    raise ValueError("a list has no end")


def _skipped(text: str, at: int) -> int:
    """The next place that is no white space and no comma."""
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at
