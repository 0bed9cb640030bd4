"""Calls that are JSON objects: those of Qwen3, between marks, and those of Llama 3, as the whole text."""

from __future__ import annotations

import json
import re
from typing import Any

from specjax.serving.tools.call import Call, Schemas, call_of
from specjax.serving.tools.forcing import Callee, json_call

_BETWEEN = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|$)", re.DOTALL)


class MarkedJson:
    """Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as often as there are calls."""

    openers = ("<tool_call>",)
    marks = ("<tool_call>", "</tool_call>")
    between = "\n"

    def forced(self, function: Callee) -> str:
        return f"<tool_call>\n{json_call(function, 'arguments')}\n</tool_call>"

    def calls(self, text: str, schemas: Schemas) -> list[Call] | None:
        found = [_call(part, "arguments") for part in _BETWEEN.findall(text)]
        return None if not found or None in found else [each for each in found if each is not None]


class BareJson:
    """Llama 3: the whole text is `{"name": ..., "parameters": {...}}`; several stand one after the other, with a
    semicolon or a space between them.
    """

    openers = ("{", "<|python_tag|>")
    marks = ("<|python_tag|>",)
    between = "; "

    def forced(self, function: Callee) -> str:
        return json_call(function, "parameters")

    def calls(self, text: str, schemas: Schemas) -> list[Call] | None:
        decoder, calls, rest = json.JSONDecoder(), [], text.removeprefix("<|python_tag|>").strip()
        while rest:
            try:
                value, end = decoder.raw_decode(rest)
            except (ValueError, RecursionError):
                return None
            call = _from(value, "parameters")
            if call is None or call.name not in schemas:
                return None
            calls.append(call)
            rest = rest[end:].lstrip("; \n\t")
        return calls or None


def _call(text: str, arguments: str) -> Call | None:
    try:
        return _from(json.loads(text), arguments)
    except (ValueError, RecursionError):
        return None


def _from(value: Any, arguments: str) -> Call | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    given = value.get(arguments, value.get("arguments", {}))
    return call_of(value["name"], given) if isinstance(given, dict) else None
