"""Calls that a request forces, as regular expressions: each family's form, with arguments that fit the schemas."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from specjax.grammar.expression import GrammarError
from specjax.grammar.schema import FORMATS, NOTES, schema_regex

READABLE = re.compile(r"""[^\s:{}\[\],<>"']+""")
"""Names of functions and parameters that every form of calls can be read with."""


class Member(NamedTuple):
    """A parameter of a function: its name, its schema, and whether every call has it."""

    name: str
    schema: Any
    required: bool


@dataclass(frozen=True)
class Callee:
    """A function that may be called.

    Attributes:
        name: the function's.
        parameters: the schema of its arguments, which is one of an object.
    """

    name: str
    parameters: Mapping[str, Any]

    @classmethod
    def of(cls, tool: Mapping[str, Any]) -> Callee:
        """From a tool in OpenAI's form. A function without properties has no arguments, unless it says otherwise.

        Raises:
            GrammarError: its name could not be read in a call.
        """
        function = tool["function"]
        parameters = {"type": "object", **(function.get("parameters") or {})}
        if not parameters.get("properties"):
            parameters.setdefault("additionalProperties", False)
        return cls(_readable(function["name"]), parameters)

    def members(self) -> list[Member]:
        """Its parameters, for forms that write each by itself.

        Raises:
            GrammarError: the schema says more of them than their names, schemas and which are required.
        """
        known = {"type", "properties", "required", "additionalProperties", *NOTES}
        if unknown := [keyword for keyword in self.parameters if keyword not in known]:
            raise GrammarError(
                f"the parameters of {self.name} have {unknown[0]!r}, which a forced call cannot hold here; leave it out"
            )
        shared = {name: self.parameters[name] for name in ("$defs", "definitions") if name in self.parameters}
        required = self.parameters.get("required", [])
        return [
            Member(_readable(name), {**schema, **shared} if isinstance(schema, dict) else schema, name in required)
            for name, schema in self.parameters.get("properties", {}).items()
        ]


def json_call(function: Callee, arguments: str) -> str:
    """A call as an object of JSON, whose arguments have this name."""
    held = schema_regex(function.parameters)
    return rf'\{{"name": "{re.escape(function.name)}", "{arguments}": {held}\}}'


def is_text(schema: Any) -> bool:
    """Whether an argument is written as plain text: it may be a string, and nothing says which others it may be."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    return kinds == "string" or (isinstance(kinds, list) and "string" in kinds)


def plain_text(member: Member, without: Sequence[str]) -> str:
    """A string as plain text, in which these words do not stand; they begin with the one < that they have.

    Raises:
        GrammarError: its schema says something that cannot be held in plain text.
    """
    schema = member.schema
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        if texts := [value for value in values if isinstance(value, str)]:
            return f"(?:{'|'.join(map(re.escape, texts))})"
    said = {keyword for keyword in schema if keyword not in {"type", *NOTES}}
    if said == {"format"} and schema["format"] in FORMATS:
        return FORMATS[schema["format"]]
    if said:
        raise GrammarError(
            f"the parameter {member.name} has {min(said)!r}, which plain text cannot be held to in this model's form of"
            " calls; leave it out"
        )
    return free_text(without)


def free_text(without: Sequence[str]) -> str:
    """Any text in which none of these words stands. Each word begins with <, and has no other one."""
    begun = sorted({word[:length] for word in without for length in range(1, len(word))})
    parted = []
    for start in begun:
        following = {word[len(start)] for word in without if word.startswith(start)}
        parted.append(f"{re.escape(start)}[^{''.join(map(re.escape, sorted(following | {'<'})))}]")
    starts = "|".join(re.escape(start) for start in begun)
    return f"(?:[^<]|(?:{starts})*(?:{'|'.join(parted)}))*"


def _readable(name: str) -> str:
    if not READABLE.fullmatch(name):
        raise GrammarError(f"the name {name!r} cannot stand in a forced call; use letters, digits, _, - and .")
    return name
