"""Calls whose arguments stand between tags as plain text: those of Qwen3.5 and Step-3.5, and those of GLM-4.5."""

from __future__ import annotations

import re

from specjax.serving.tools.call import Call, Schemas, call_of, typed

_BETWEEN = re.compile(r"<tool_call>(.*?)(?:</tool_call>|$)", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^>\n]+)>(.*?)(?:</function>|$)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|$)", re.DOTALL)
_NAME = re.compile(r"[\w.-]+")
_KEY_VALUE = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


class TaggedFunctions:
    """Qwen3.5 and Step-3.5: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

    A value stands on lines of its own.
    """

    openers = ("<tool_call>",)
    marks = ("<tool_call>", "</tool_call>")

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


def _unlined(value: str) -> str:
    """A value without the line breaks that set it apart."""
    return value.removeprefix("\n").removesuffix("\n")
