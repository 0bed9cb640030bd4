"""Calls whose arguments stand between tags as plain text: those of Qwen3.5 and Step-3.5, and those of GLM-4.5."""

from __future__ import annotations

import re
from collections.abc import Sequence

from specjax.grammar.schema import schema_regex
from specjax.serving.tools.call import Call, Schemas, call_of, typed
from specjax.serving.tools.forcing import Callee, Member, is_text, plain_text

_BETWEEN = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)
_NAME = re.compile(r"[\w.-]+")
_ENDS, _PAIR_ENDS = ("</parameter>", "<parameter=", "</function>"), ("</arg_value>", "</tool_call>")
_KEY_VALUE = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


class TaggedFunctions:
    """Qwen3.5 and Step-3.5: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

    A value stands on lines of its own.
    """

    openers = ("<tool_call>",)
    marks = ("<tool_call>", "</tool_call>")
    between = "\n"

    def forced(self, function: Callee) -> str:
        parts = [
            f"<parameter={re.escape(each.name)}>\n{_value(each, _ENDS)}\n</parameter>\n" for each in function.members()
        ]
        return (
            f"<tool_call>\n<function={re.escape(function.name)}>\n{_optional(function, parts)}</function>\n</tool_call>"
        )

    def calls(self, text: str, schemas: Schemas) -> list[Call] | None:
        calls = []
        for name, body in _FUNCTION.findall(text):
            kinds = schemas.get(name.strip(), {})
            arguments = {
                key.strip(): typed(_unlined(value), kinds.get(key.strip())) for key, value in _PARAMETER.findall(body)
            }
            calls.append(call_of(name.strip(), arguments))
        return calls or None


class TaggedPairs:
    """GLM-4.5 has pairs: `<tool_call>NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value> </tool_call>`."""

    openers = ("<tool_call>",)
    marks = ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
    between = "\n"

    def forced(self, function: Callee) -> str:
        parts = [
            f"<arg_key>{re.escape(each.name)}</arg_key>\n<arg_value>{_value(each, _PAIR_ENDS)}</arg_value>\n"
            for each in function.members()
        ]
        return f"<tool_call>{re.escape(function.name)}\n{_optional(function, parts)}</tool_call>"

    def calls(self, text: str, schemas: Schemas) -> list[Call] | None:
        calls = []
        for body in _BETWEEN.findall(text):
            name = body.partition("<arg_key>")[0].strip()
            if not _NAME.fullmatch(name):
                return None
            kinds = schemas.get(name, {})
            pairs = _KEY_VALUE.findall(body)
            calls.append(call_of(name, {key.strip(): typed(value, kinds.get(key.strip())) for key, value in pairs}))
        return calls or None


def _value(member: Member, ends: Sequence[str]) -> str:
    """The expression of an argument: strings are plain text, and everything else is JSON."""
    return plain_text(member, ends) if is_text(member.schema) else schema_regex(member.schema)


def _optional(function: Callee, parts: Sequence[str]) -> str:
    """The parts of a call, in their order, of which those that are not required may be left out."""
    pairs = zip(function.members(), parts, strict=True)
    return "".join(part if member.required else f"(?:{part})?" for member, part in pairs)


def _unlined(value: str) -> str:
    """A value without the line breaks that set it apart."""
    return value.removeprefix("\n").removesuffix("\n")
