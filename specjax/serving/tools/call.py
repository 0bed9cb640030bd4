"""What a call is, and what knows how calls are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specjax.serving.tools.forcing import Callee


@dataclass(frozen=True)
class Call:
    """A call of a function.

    Attributes:
        name: the function's.
        arguments: its arguments as JSON.
    """

    name: str
    arguments: str


Schemas = Mapping[str, Mapping[str, Any]]
"""Of each function the schema of each of its parameters."""


class CallFormat(Protocol):
    """How a family of models writes calls."""

    @property
    def openers(self) -> Sequence[str]:
        """A text that has one of these may call from there on. Every call has one of its own."""
        ...

    @property
    def marks(self) -> Sequence[str]:
        """Control tokens that belong to calls."""
        ...

    def calls(self, text: str, schemas: Schemas) -> list[Call] | None:
        """The calls in a text from its first opener on; None if it is no call after all."""
        ...

    @property
    def between(self) -> str:
        """What stands between two calls."""
        ...

    def forced(self, function: Callee) -> str:
        """The regular expression of the calls of a function.

        Raises:
            GrammarError: its schema has something that cannot be held.
        """
        ...


def forced_calls(form: CallFormat, tools: Sequence[Mapping[str, Any]], several: bool) -> str:
    """The regular expression of answers that call one of these functions, or `several` of them one after the other.

    Raises:
        GrammarError: the schema of a function cannot be held.
    """
    one = f"(?:{'|'.join(form.forced(Callee.of(tool)) for tool in tools)})"
    return rf"\n{{0,2}}{one}(?:{re.escape(form.between)}{one})*" if several else rf"\n{{0,2}}{one}"


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> Schemas:
    """What the parameters of functions may be, from tools in OpenAI's form."""
    return {
        tool["function"]["name"]: (tool["function"].get("parameters") or {}).get("properties") or {} for tool in tools
    }


def typed(text: str, schema: Any) -> Any:
    """The value of an argument that was written as plain text.

    Args:
        text: what was written.
        schema: of the parameter. A text stays a text if it may be one; else it is JSON, if it can be.
    """
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds or []
    if "string" in kinds:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def call_of(name: str, arguments: Any) -> Call:
    """A call with these arguments."""
    return Call(name, json.dumps(arguments, ensure_ascii=False))
