"""What a schema's expression matches is JSON that the schema allows; what cannot be held is refused."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from specjax.grammar.automaton import ByteAutomaton, byte_automaton
from specjax.grammar.expression import GrammarError
from specjax.grammar.schema import schema_regex

PERSON: dict[str, Any] = {
    "$defs": {"Colour": {"enum": ["red", 'gr"een', "blau/ü", 7, None], "title": "Colour"}},
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 6},
        "nick": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "age": {"type": "integer"},
        "colours": {"type": "array", "items": {"$ref": "#/$defs/Colour"}, "minItems": 1, "maxItems": 3},
        "half~/key": {"const": {"a.b": [1, True]}},
    },
    "required": ["age", "half~/key"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, Any] = {
    "person": PERSON,
    "optional": {"properties": {name: {"type": "boolean"} for name in "abcde"}, "type": "object"},
    "numbers": {"type": "array", "items": {"type": "number"}, "minItems": 2},
    "tuple": {"type": "array", "prefixItems": [{"const": "x"}, {"type": ["integer", "boolean"]}]},
    "empty array": {"type": "array", "maxItems": 0},
    "at most one": {"type": "array", "items": {"type": ["integer", "boolean"]}, "maxItems": 1},
    "exactly one": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 1},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "nothing inside": {"type": "object", "additionalProperties": False},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
    "date": {"type": "string", "format": "date"},
    "time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "anything": {},
    "untyped": {"minLength": 3, "maxItems": 1},
    "union": {"anyOf": [PERSON["properties"]["name"], {"type": "object", "properties": {"n": {"type": "null"}}}]},
    "one of all": {"allOf": [{"type": "boolean"}], "description": "a switch"},
}


@cache
def automaton(name: str) -> ByteAutomaton:
    return byte_automaton(schema_regex(SCHEMAS[name]))


def nested(levels: int, most: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema, "maxItems": most}
    return schema


def matches(automaton: ByteAutomaton, text: str) -> bool:
    state = 0
    for byte in text.encode():
        state = int(automaton.next[state, byte])
        if state < 0:
            return False
    return bool(automaton.accepting[state])


def distances(automaton: ByteAutomaton) -> np.ndarray:
    """The fewest bytes from each state to an end."""
    steps = np.where(automaton.accepting, 0, 10**6)
    while True:
        after = np.where(automaton.next >= 0, steps[automaton.next] + 1, 10**6).min(axis=1)
        if (np.minimum(steps, after) == steps).all():
            return steps
        steps = np.minimum(steps, after)


def some_text(automaton: ByteAutomaton, steps: np.ndarray, rng: random.Random) -> str:
    """A random text: at first any way, and then the shortest to an end."""
    state, text, wander = 0, bytearray(), rng.randrange(60)
    while len(text) < wander or not automaton.accepting[state]:
        following = automaton.next[state]
        ways = np.flatnonzero(following >= 0)
        if not len(ways):
            break
        if len(text) >= wander:
            ways = ways[steps[following[ways]] == steps[following[ways]].min()]
        # Letters are many and brackets are few: each kind of way is as likely as the others.
        target = rng.choice(sorted(set(following[ways].tolist())))
        byte = int(rng.choice(ways[following[ways] == target].tolist()))
        text.append(byte)
        state = int(following[byte])
    return text.decode()


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_schema_matches_is_valid_json(name: str) -> None:
    rng, own = random.Random(1), automaton(name)
    steps = distances(own)
    texts = {some_text(own, steps, rng) for _ in range(60)}
    for text in texts:
        jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker(["uuid"]))
    assert len(texts) > 10 or name in ("empty array", "nothing inside", "one of all")


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("person", '{"age": 3, "half~/key": {"a.b":[1,true]}}', True),
        (
            "person",
            '{"name": "\\"é日", "age":-0, "colours": ["gr\\"een" ,7, null],"half~/key":{"a.b":[1,true]} }',
            True,
        ),
        ("person", '{"nick":null,"age":3,"half~/key":{"a.b":[1,true]}}', True),
        ("person", '{"age":3}', False),
        ("person", '{"age":3,"half~/key":{"axb":[1,true]}}', False),
        ("person", '{"name":"","age":3,"half~/key":{"a.b":[1,true]}}', False),
        ("person", '{"name":"1234567","age":3,"half~/key":{"a.b":[1,true]}}', False),
        ("person", '{"age":3,"colours":[],"half~/key":{"a.b":[1,true]}}', False),
        ("optional", "{}", True),
        ("optional", '{"b":true,"e":false}', True),
        ("optional", '{"b":true,}', False),
        ("optional", '{"e":true,"b":false}', False),
        ("optional", '{,"b":true}', False),
        ("numbers", "[1e5, -2.50E-3]", True),
        ("numbers", "[01, 2]", False),
        ("numbers", "[1]", False),
        ("empty array", "[]", True),
        ("at most one", "[]", True),
        ("at most one", "[ true]", True),
        ("at most one", "[1,2]", False),
        ("exactly one", "[]", False),
        ("exactly one", "[7]", True),
        ("exactly one", "[7,8]", False),
        ("map", '{"a":1,"\\n":2}', True),
        ("pattern", '"AB-12"', True),
        ("pattern", '"xAB-12"', False),
        ("date", '"2024-02-29"', True),
        ("date", '"2024-2-29"', False),
        ("anything", '{"a":[1,{"b":null}]}', False),
        ("anything", '{"a":[1,2,"\\t"]}', True),
    ],
)
def test_what_a_schema_matches_and_what_not(name: str, text: str, wanted: bool) -> None:
    if wanted:
        jsonschema.validate(json.loads(text), SCHEMAS[name])
    assert matches(automaton(name), text) == wanted


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "integer", "minimum": 0}, "'minimum', which cannot be held"),
        ({"type": "array", "uniqueItems": True}, "'uniqueItems'"),
        ({"oneOf": [{"type": "integer"}]}, "anyOf holds the same"),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, "requires 'b'"),
        ({"$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}, "$ref": "#/$defs/x"}, "refers to itself"),
        ({"$ref": "other.json"}, "only references within"),
        ({"$ref": "#/$defs/y"}, "not in it"),
        ({"type": "string", "pattern": "a.*"}, "leave them out"),
        ({"type": "string", "pattern": "a)(b"}, "closes a bracket that is not open"),
        ({"type": "string", "format": "email"}, "format 'email'"),
        ({"type": "string", "format": "date", "maxLength": 3}, "several of"),
        ({"type": "string", "minLength": 4, "maxLength": 3}, "whole numbers in order"),
        ({"type": "colour"}, "type 'colour'"),
        ({"enum": [1, 2], "type": "string"}, "allows no value"),
        ({"allOf": [{}, {}]}, "write them as one"),
        ({"type": "array", "prefixItems": [{}], "minItems": 2}, "allow as many"),
        (False, "give an object"),
        (nested(40, 2), "more than 1048576 characters of a regular expression, at #/items/items"),
        (
            {
                "$defs": {
                    f"{i}": {"prefixItems": [{"$ref": f"#/$defs/{i + 1}"}] * 2, "type": "array"} for i in range(40)
                }
                | {"40": {"type": "null"}},
                "$ref": "#/$defs/0",
            },
            "take levels, references or choices out",
        ),
        (nested(2000, 1), "too many levels"),
    ],
)
def test_what_cannot_be_held_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        schema_regex(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": 5}, {"type": []}, {"enum": 5}, {"enum": "abc"}, {"enum": []}, {"anyOf": []}, {"allOf": 5},
        {"type": "object", "required": "a"}, {"type": "object", "properties": ["a"]}, {"type": "string", "pattern": 5},
        {"type": "string", "format": ["date"]}, {"type": "array", "prefixItems": 5},
    ],
)  # fmt: skip
def test_keywords_of_another_shape_are_refused(schema: Any) -> None:
    with pytest.raises(GrammarError, match="; it must be "):
        schema_regex(schema)


def test_levels_of_which_each_has_one_item_do_not_double() -> None:
    assert len(schema_regex(nested(80, 1))) == 2 * len(schema_regex(nested(40, 1))) - len(schema_regex(nested(0, 1)))


def test_a_reference_may_have_codes_of_bytes() -> None:
    """RFC 6901, section 6: in the fragment of a URI, %25 stands for a percent sign and %C3%A9 for é."""
    schema = {"$defs": {"a b/é%": {"type": "boolean"}}, "$ref": "#/%24defs/a%20b~1%C3%A9%25"}
    assert schema_regex(schema) == schema_regex({"type": "boolean"})


def test_a_constant_is_compared_as_json() -> None:
    assert schema_regex({"enum": [True, 1], "const": 1}) == schema_regex({"const": 1})
