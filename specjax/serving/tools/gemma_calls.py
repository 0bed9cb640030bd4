"""Calls of Gemma 4: `<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`.

Texts stand between `<|"|>`. Numbers, true, false and null stand as they are; lists and objects nest. Source: Google's
page "Function calling with Gemma 4" and the models' chat templates.
"""

from __future__ import annotations

import json
import re
from typing import Any

from specjax.grammar.expression import GrammarError
from specjax.grammar.schema import NOTES, members_in_order, schema_regex
from specjax.serving.tools.call import Call, Schemas, call_of
from specjax.serving.tools.forcing import Callee, Member, is_text, plain_text

QUOTE = '<|"|>'
_BETWEEN = re.compile(r"<\|tool_call>\s*call:([\w.-]+)\s*(\{.*?\})\s*(?:<tool_call\|>|$)", re.DOTALL)
_KEY = re.compile(r"\s*([^\s:{}\[\],]+)\s*:")
_PLAIN = re.compile(r"[^,\]}]*")
_DEEPEST = 32


class GemmaCalls:
    """How Gemma 4 writes calls."""

    openers = ("<|tool_call>",)
    marks = ("<|tool_call>", "<tool_call|>", QUOTE)
    between = ""

    def forced(self, function: Callee) -> str:
        return rf"<\|tool_call>call:{re.escape(function.name)}{_held_object(function)}<tool_call\|>"

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


def _held(member: Member) -> str:
    """The expression of a value.

    Raises:
        GrammarError: its schema has something that cannot be held.
    """
    schema = member.schema if isinstance(member.schema, dict) else {}
    said = {keyword for keyword in schema if keyword not in NOTES}
    if is_text(schema):
        quote = re.escape(QUOTE)
        return f"{quote}{plain_text(member, (QUOTE,))}{quote}"
    if schema.get("type") == "array" and said <= {"type", "items"}:
        item = _held(member._replace(schema=schema.get("items")))
        return rf"\[(?:{item}(?:,{item})*)?\]"
    if schema.get("type") == "object":
        return _held_object(Callee(member.name, schema))
    if schema.get("type") in ("integer", "number", "boolean", "null"):
        return schema_regex(schema)
    raise GrammarError(
        f"the parameter {member.name} has the schema {json.dumps(member.schema)}, which cannot be held in this model's"
        " form of calls; give it one type"
    )


def _held_object(function: Callee) -> str:
    members = [(f"{re.escape(each.name)}:{_held(each)}", each.required) for each in function.members()]
    return rf"\{{{members_in_order(members, ',') if members else ''}\}}"


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
