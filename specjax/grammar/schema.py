"""JSON schemas as regular expressions.

A regular language cannot express every schema, and a keyword that is left out would let texts through that break the
schema. So whatever cannot be held is refused. outlines-core has such a translation too, but it passes over keywords
that it does not know, such as `minimum`, and parts of some that it knows.

Objects have their properties in the order of the schema, and no others unless the schema names none. Between parts of
the JSON there is at most one space. Strings have the escapes of JSON, but for `\\u`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import unquote

from specjax.grammar.automaton import byte_automaton
from specjax.grammar.expression import GrammarError, without_anchors, without_marks

SPACE = " ?"
CHARACTER = r'(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])'
INTEGER = "-?(?:0|[1-9][0-9]*)"
NUMBER = rf"{INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
DATE = "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
HEX = "[0-9a-fA-F]"
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "uuid": f"{HEX}{{8}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{4}}-{HEX}{{12}}",
}
"""The shape of a text of each format; the 31st of every month is a date here."""

NOTES = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "$defs", "definitions"),
}
"""Keywords that say nothing of what is valid."""

MOST_WRITTEN = 1 << 20
"""So many characters may be written for a schema and all its parts. References, and arrays in arrays, can double them
at every level."""

DEPTH = 2
"""Arrays and objects in a value that may be anything are nested no deeper than this."""


def schema_regex(schema: Any) -> str:
    """The regular expression of the JSON texts that a schema allows.

    Args:
        schema: as `json.loads` gives it.

    Raises:
        GrammarError: the schema has something that a regular expression cannot hold, or it is too large.
    """
    try:
        return _Schema(schema).regex(schema, "#", ())
    except RecursionError:
        raise GrammarError("the schema has too many levels; write it with fewer") from None


class _Schema:
    """The translation of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._written = 0

    def regex(self, schema: Any, place: str, within: tuple[str, ...]) -> str:
        """The expression of a part.

        Args:
            schema: the part.
            place: where it stands, for messages.
            within: the references that led here.
        """
        written = self._part(schema, place, within)
        self._written += len(written)
        if self._written > MOST_WRITTEN:
            raise GrammarError(
                f"the schema comes to more than {MOST_WRITTEN} characters of a regular expression, at {place}; take"
                " levels, references or choices out"
            )
        return written

    def _part(self, schema: Any, place: str, within: tuple[str, ...]) -> str:
        if schema is True or schema == {}:
            return _anything(DEPTH)
        if not isinstance(schema, dict):
            raise GrammarError(f"the schema at {place} is {json.dumps(schema)}; give an object that allows something")
        _check_shapes(schema, place)
        for keyword, translate in self._keywords().items():
            if keyword in schema:
                return translate(schema, place, within)
        kinds = schema.get("type", sorted(_TYPES))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if unknown := [kind for kind in kinds if kind not in _TYPES]:
            raise GrammarError(f"the schema at {place} has type {unknown[0]!r}; known are {', '.join(_TYPES)}")
        known = {"type"}.union(*(_TYPES[kind] for kind in kinds))
        _check(schema, place, known)
        return _either([self._typed(kind, schema, place, within) for kind in kinds])

    def _keywords(self) -> dict[str, Callable[[dict, str, tuple[str, ...]], str]]:
        return {
            "$ref": self._ref,
            "enum": self._values,
            "const": self._values,
            "anyOf": self._any_of,
            "allOf": self._all_of,
        }

    def _ref(self, schema: dict, place: str, within: tuple[str, ...]) -> str:
        _check(schema, place, {"$ref"})
        ref = schema["$ref"]
        if ref in within:
            raise GrammarError(
                f"the schema at {place} refers to itself by {ref!r}; a regular expression cannot nest without end:"
                " write out as many levels as are wanted"
            )
        found = self._root
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise GrammarError(f"the schema at {place} refers to {ref!r}; only references within the schema are known")
        for name in filter(None, unquote(ref[1:]).split("/")):  # a fragment of a URI, with % before codes of bytes
            name = name.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise GrammarError(f"the schema at {place} refers to {ref!r}, which is not in it")
            found = found[name]
        return self.regex(found, ref, (*within, ref))

    def _values(self, schema: dict, place: str, within: tuple[str, ...]) -> str:
        _check(schema, place, {"enum", "const", "type"})
        values = schema["enum"] if "enum" in schema else [schema["const"]]
        kinds = schema.get("type", list(_PYTHON))
        kinds = [kinds] if isinstance(kinds, str) else kinds
        fitting = [value for value in values if any(type(value) in _PYTHON.get(kind, ()) for kind in kinds)]
        if "const" in schema:
            fitting = [value for value in fitting if json.dumps(value) == json.dumps(schema["const"])]  # true is not 1
        if not fitting:
            raise GrammarError(f"the schema at {place} allows no value")
        return _either([_literal(value) for value in fitting])

    def _any_of(self, schema: dict, place: str, within: tuple[str, ...]) -> str:
        _check(schema, place, {"anyOf"})
        return _either(
            [self.regex(part, f"{place}/anyOf/{index}", within) for index, part in enumerate(schema["anyOf"])]
        )

    def _all_of(self, schema: dict, place: str, within: tuple[str, ...]) -> str:
        _check(schema, place, {"allOf"})
        if len(schema["allOf"]) != 1:
            raise GrammarError(f"the schema at {place} has allOf with several parts; write them as one")
        return self.regex(schema["allOf"][0], f"{place}/allOf/0", within)

    def _typed(self, kind: str, schema: dict, place: str, within: tuple[str, ...]) -> str:
        if kind == "string":
            return _string(schema, place)
        if kind == "array":
            return self._array(schema, place, within)
        if kind == "object":
            return self._object(schema, place, within)
        return {"integer": INTEGER, "number": NUMBER, "boolean": "(?:true|false)", "null": "null"}[kind]

    def _array(self, schema: dict, place: str, within: tuple[str, ...]) -> str:
        first = [
            self.regex(part, f"{place}/prefixItems/{index}", within)
            for index, part in enumerate(schema.get("prefixItems", ()))
        ]
        least, most = _bounds(schema, "minItems", "maxItems", place)
        if first:  # as many items as these, unless there must be more or may be only fewer
            if not least <= len(first) <= (len(first) if most is None else most):
                raise GrammarError(f"the schema at {place} has {len(first)} prefixItems; allow as many items")
            return _brackets(r"\[", f"{SPACE},{SPACE}".join(first), r"\]")
        item = self.regex(schema["items"], f"{place}/items", within) if "items" in schema else _anything(DEPTH - 1)
        return _array_of(item, least, most)

    def _object(self, schema: dict, place: str, within: tuple[str, ...]) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if missing := [name for name in required if name not in properties]:
            raise GrammarError(f"the schema at {place} requires {missing[0]!r}, which is not among its properties")
        if not properties:
            others = schema.get("additionalProperties", True)
            if others is False:
                return rf"\{{{SPACE}\}}"
            value = _anything(DEPTH - 1) if others is True else self.regex(others, f"{place}/additional", within)
            return _object_of(f'"{CHARACTER}*"{SPACE}:{SPACE}{value}')
        members = [
            (f"{_literal(name)}{SPACE}:{SPACE}{self.regex(part, f'{place}/{name}', within)}", name in required)
            for name, part in properties.items()
        ]
        return _brackets(r"\{", members_in_order(members), r"\}")


def members_in_order(members: Sequence[tuple[str, bool]], comma: str = f"{SPACE},{SPACE}") -> str:
    """Members in their order, of which some are required; between two of them is a comma.

    Before the first that is required, each brings along the comma behind it, and after that one the comma before it.
    If none is required, each of them may be the first, or there are none.
    """
    behind = [f"{comma}{member}" if required else f"(?:{comma}{member})?" for member, required in members]
    must = next((place for place, (_, required) in enumerate(members) if required), None)
    if must is not None:
        before = "".join(f"(?:{member}{comma})?" for member, _ in members[:must])
        return before + members[must][0] + "".join(behind[must + 1 :])
    return f"{_some([member for member, _ in members], behind)}?"


def _some(members: Sequence[str], behind: Sequence[str]) -> str:
    """At least one of the members: some of the first half and any of the second, or some of the second.

    To write out the rest behind each member that may be the first would take an expression of quadratic length.
    """
    if len(members) == 1:
        return f"(?:{members[0]})"
    half = len(members) // 2
    first, second = _some(members[:half], behind[:half]), _some(members[half:], behind[half:])
    return f"(?:{first}{''.join(behind[half:])}|{second})"


def _string(schema: dict, place: str) -> str:
    least, most = _bounds(schema, "minLength", "maxLength", place)
    inner = [f"{CHARACTER}{_times(least, most)}"] if {"minLength", "maxLength"} & schema.keys() else []
    if "pattern" in schema:
        inner.append(_plain_pattern(schema["pattern"], place))
    if "format" in schema:
        if schema["format"] not in FORMATS:
            raise GrammarError(
                f"the schema at {place} has format {schema['format']!r}; known are {', '.join(FORMATS)}: leave it out,"
                " or say it as a pattern"
            )
        inner.append(FORMATS[schema["format"]])
    if len(inner) > 1:
        raise GrammarError(
            f"the schema at {place} has several of lengths, pattern and format; say all of it in one pattern"
        )
    return f'"{inner[0] if inner else f"{CHARACTER}*"}"'


def _plain_pattern(pattern: str, place: str) -> str:
    """The pattern, as one that matches the whole string and cannot break out of it.

    Raises:
        GrammarError: it allows characters that JSON must escape.
    """
    without_marks(pattern)  # refuses one that is sound only with something around it
    bare = without_anchors(pattern)
    automaton = byte_automaton(bare)
    special = [chr(byte) for byte in (*range(0x20), *b'"\\') if (automaton.next[:, byte] >= 0).any()]
    if special:
        raise GrammarError(
            f"the schema at {place} has the pattern {pattern!r}, which allows {special[-1]!r}; JSON must escape quotes,"
            ' backslashes and control characters, so leave them out: [^"\\\\\\x00-\\x1f] in place of .'
        )
    return f"(?:{bare})"


def _anything(depth: int) -> str:
    """Any value, in which arrays and objects are nested so deep."""
    scalars = [f'"{CHARACTER}*"', NUMBER, "true", "false", "null"]
    if depth == 0:
        return _either(scalars)
    inner = _anything(depth - 1)
    return _either([*scalars, _array_of(inner, 0, None), _object_of(f'"{CHARACTER}*"{SPACE}:{SPACE}{inner}')])


def _array_of(item: str, least: int, most: int | None) -> str:
    if most == 0:
        return _brackets(r"\[", "", r"\]")
    more = _times(max(least - 1, 0), None if most is None else most - 1)
    items = item if most == 1 else f"{item}(?:{SPACE},{SPACE}{item}){more}"
    return _brackets(r"\[", f"(?:{items})?" if least == 0 else items, r"\]")


def _object_of(member: str) -> str:
    return _brackets(r"\{", f"(?:{member}(?:{SPACE},{SPACE}{member})*)?", r"\}")


def _brackets(left: str, inner: str, right: str) -> str:
    return f"{left}{SPACE}{inner}{SPACE}{right}"


def _either(ways: Sequence[str]) -> str:
    return ways[0] if len(ways) == 1 else f"(?:{'|'.join(ways)})"


def _times(least: int, most: int | None) -> str:
    return f"{{{least},{'' if most is None else most}}}"


def _literal(value: Any) -> str:
    """A value as JSON writes it, without spaces."""
    return re.escape(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _bounds(schema: dict, least: str, most: str, place: str) -> tuple[int, int | None]:
    low, high = schema.get(least, 0), schema.get(most)
    if type(low) is not int or low < 0 or (high is not None and (type(high) is not int or high < low)):
        raise GrammarError(f"the schema at {place} has {least} {low} and {most} {high}; give whole numbers in order")
    return low, high


_SHAPES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "type": ("the name of a type, or a list of such", lambda x: isinstance(x, str) or _is_list(x, str)),
    **{name: ("a list with something in it", lambda x: _is_list(x, object)) for name in ("enum", "anyOf", "allOf")},
    "prefixItems": ("a list", lambda x: isinstance(x, list)),
    "required": ("a list of names", lambda x: x == [] or _is_list(x, str)),
    "properties": ("an object", lambda x: isinstance(x, dict)),
    **{name: ("a text", lambda x: isinstance(x, str)) for name in ("pattern", "format")},
}
"""What stands behind a keyword, in words and as a check."""


def _is_list(value: Any, kind: type) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(isinstance(each, kind) for each in value)


def _check_shapes(schema: dict, place: str) -> None:
    for keyword, (wanted, fits) in _SHAPES.items():
        if keyword in schema and not fits(schema[keyword]):
            raise GrammarError(
                f"the schema at {place} has {keyword!r}: {json.dumps(schema[keyword])}; it must be {wanted}"
            )


def _check(schema: dict, place: str, known: set[str]) -> None:
    """
    Raises:
        GrammarError: there is a keyword that is not held.
    """
    unknown = [keyword for keyword in schema if keyword not in known | NOTES]
    if unknown:
        advice = "; anyOf holds the same if no value fits two of its parts" if unknown[0] == "oneOf" else ""
        raise GrammarError(
            f"the schema at {place} has {unknown[0]!r}, which cannot be held here; leave it out, and look at the result"
            f" instead{advice}"
        )


_TYPES: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": set(),
    "number": set(),
    "boolean": set(),
    "null": set(),
}
"""The types of values, with the keywords that are held for each."""

_PYTHON: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
"""The types of values as `json` reads them."""
