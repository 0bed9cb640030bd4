"""Calls that a request forces: whatever a model says in their grammar is a call that fits the schema."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from running import DRAFTS, Running

import specjax
from specjax.grammar.automaton import DEAD, byte_automaton
from specjax.grammar.compile import regex_grammar
from specjax.grammar.expression import GrammarError
from specjax.serving.tools.call import CallFormat, schemas_of
from specjax.serving.tools.forcing import Callee, free_text
from specjax.serving.tools.gemma_calls import GemmaCalls
from specjax.serving.tools.json_calls import BareJson, MarkedJson
from specjax.serving.tools.tagged_calls import TaggedFunctions, TaggedPairs
from specjax.serving.tools.watching import CallWatch

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "which one"},
        "days": {"type": "integer"},
        "units": {"type": "array", "items": {"type": "string"}},
        "scale": {"type": "string", "enum": ["C", "F"]},
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "north": {"type": "boolean"}},
            "required": ["lat"],
        },
    },
    "required": ["city", "scale"],
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now"}},
]
FORMS: list[CallFormat] = [MarkedJson(), TaggedFunctions(), TaggedPairs(), GemmaCalls(), BareJson()]


class Walks:
    """Texts of an automaton at random: mostly towards an end, and now and then anywhere."""

    def __init__(self, regex: str) -> None:
        self.automaton = byte_automaton(regex)
        self.edges = [
            {int(after): np.flatnonzero(row == after) for after in np.unique(row[row != DEAD])}
            for row in self.automaton.next
        ]
        self.left = np.where(self.automaton.accepting, 0, np.inf)  # bytes to the nearest end
        before = None
        while not np.array_equal(before, self.left):
            before = self.left
            nearest = [min((before[after] for after in each), default=np.inf) for each in self.edges]
            self.left = np.minimum(before, np.array(nearest) + 1)

    def text(self, rng: random.Random) -> str:
        state, text = 0, bytearray()
        while self.left[state] or (self.edges[state] and rng.random() < 0.5):
            after = rng.choice([*self.edges[state]])
            if rng.random() < 0.65 and self.left[state]:
                after = min(self.edges[state], key=lambda each: (self.left[each], rng.random()))
            text.append(rng.choice(self.edges[state][after].tolist()))
            state = after
        return text.decode()


def fits(arguments: dict[str, Any]) -> bool:
    """Whether arguments are what `PARAMETERS` allows."""
    place = arguments.get("place", {"lat": 0})
    units = arguments.get("units", [])
    return (
        {"city", "scale"} <= arguments.keys() <= PARAMETERS["properties"].keys()  # type: ignore[attr-defined]
        and isinstance(arguments["city"], str)
        and type(arguments.get("days", 0)) is int
        and isinstance(units, list)
        and all(isinstance(each, str) for each in units)
        and arguments["scale"] in ("C", "F")
        and {"lat"} <= place.keys() <= {"lat", "north"}
        and isinstance(place["lat"], int | float)
        and type(place.get("north", True)) is bool
    )


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
def test_whatever_the_grammar_allows_is_a_call_that_fits_the_schema(form: CallFormat) -> None:
    rng, schemas, seen = random.Random(1), schemas_of(TOOLS), set[frozenset[str]]()
    walks = Walks(form.forced(Callee.of(TOOLS[0])))
    for _ in range(500):
        (call,) = form.calls(walks.text(rng), schemas) or ()
        arguments = json.loads(call.arguments)
        assert call.name == "weather"
        assert fits(arguments), arguments
        seen.add(frozenset(arguments))
    assert len(seen) == 8, "any of what is not required may be left out"
    both = form.forced(Callee.of(TOOLS[1])) + form.between + form.forced(Callee.of(TOOLS[0]))
    first, second = form.calls(Walks(both).text(rng), schemas) or ()
    assert (first.name, first.arguments, second.name) == ("now", "{}", "weather")


def test_free_text_has_none_of_the_words_and_may_have_everything_else() -> None:
    automaton = byte_automaton(free_text(("</p>", "<q=")))

    def allowed(text: str) -> bool:
        state = 0
        for byte in text.encode():
            state = automaton.next[state, byte] if state != DEAD else DEAD
        return state != DEAD and bool(automaton.accepting[state])

    rng = random.Random(3)
    for _ in range(3000):
        text = "".join(rng.choice("<</pq=> \n") for _ in range(rng.randrange(12))) + "x"
        assert allowed(text) == ("</p>" not in text and "<q=" not in text), text


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ({"name": "a b"}, "the name 'a b' cannot stand in a forced call"),
        ({"name": "f", "parameters": {"properties": {"a:": {}}}}, "the name 'a:' cannot stand"),
        ({"name": "f", "parameters": {"properties": {"a": {"type": "string", "minLength": 2}}}}, "has 'minLength'"),
        ({"name": "f", "parameters": {"properties": {"a": {}}, "minProperties": 1}}, "have 'minProperties'"),
    ],
)
def test_functions_that_cannot_be_held_are_refused(function: dict, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        TaggedFunctions().forced(Callee.of({"type": "function", "function": function}))


def test_control_tokens_stand_for_themselves_where_a_grammar_has_them() -> None:
    model = specjax.load(Path(__file__).parents[1] / "fixtures/gemma4/dense/hf", need_tokenizer=True)
    tokenizer, size = model.tokenizer, model.target.vocab_size
    assert tokenizer is not None
    text = "<|im_start|>"
    tokens = [*tokenizer.encode("a"), tokenizer.vocabulary.tokens.index(text), *tokenizer.encode("b")]
    assert len(tokens) == 3
    expression = r"a<\|im_start\|>b"
    regex_grammar(expression, tokenizer, size, marks=(text,)).after(tokens)
    with pytest.raises(ValueError, match="number 2 of the text, is not allowed"):
        regex_grammar(expression, tokenizer, size).after(tokens)


TEMPLATES = {
    "json": "{% if tools %}<tool_call>{}</tool_call>{% endif %}{{ messages[-1].content }}\n",
    "tagged": "{% if tools %}<tool_call><function=f>{% endif %}{{ messages[-1].content }}\n<think>\n",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_forced_call_comes_whatever_the_model_would_say(
    running: Running, monkeypatch: pytest.MonkeyPatch, template: str
) -> None:
    """Drafts change nothing of it, and a thought that the prompt has begun would be free."""
    tokenizer = running.service.tokenizer
    vocabulary = replace(tokenizer.vocabulary, chat_template=TEMPLATES[template])
    monkeypatch.setattr(tokenizer, "vocabulary", vocabulary)
    if template == "tagged":
        monkeypatch.setattr("specjax.serving.chat.THOUGHT", ("<think>", "\n"))
    tools = [{"type": "function", "function": {"name": "pick", "parameters": LETTERS}}, TOOLS[1]]
    asked: Any = {"model": "demo", "messages": [{"role": "user", "content": "x = 1"}], "tools": tools, "seed": 5}
    forced: Any = [{"type": "function", "function": {"name": "pick"}}, "required"]
    for choice in forced:
        said = []
        for draft in (0, DRAFTS):
            answer = running.openai.chat.completions.create(
                **asked,
                tool_choice=choice,
                parallel_tool_calls=False,
                max_tokens=200,
                extra_body={"draft": draft, "accept": "coupled"},
            )
            calls = answer.choices[0].message.tool_calls or []
            said.append([(call.function.name, call.function.arguments) for call in calls])  # type: ignore[union-attr]
            assert answer.choices[0].finish_reason == "tool_calls"
        assert said[0] == said[1]
        if choice != "required":
            ((name, arguments),) = said[0]
            assert name == "pick"
            assert json.loads(arguments)["letter"] in ("a", "bc")
        else:
            assert {name for name, _ in said[0]} <= {"pick", "now"}


@pytest.mark.slow
def test_an_answer_that_calls_again_and_again_is_ended(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a call the model would rather call again than end: the bias says so."""
    tokenizer = running.service.tokenizer
    monkeypatch.setattr(tokenizer, "vocabulary", replace(tokenizer.vocabulary, chat_template=TEMPLATES["json"]))
    asked: Any = {"model": "demo", "messages": [{"role": "user", "content": "x = 1"}], "tools": TOOLS[1:]}
    endless = {str(token): -100 for token in tokenizer.eos_ids}
    for most in (2, 3):
        monkeypatch.setattr("specjax.serving.chat.MOST_CALLS", most)
        for parallel in (True, False):
            answer = running.openai.chat.completions.create(
                **asked, tool_choice="required", parallel_tool_calls=parallel, logit_bias=endless, max_tokens=300
            )
            calls = answer.choices[0].message.tool_calls or []
            assert [call.function.name for call in calls] == ["now"] * (most if parallel else 1)  # type: ignore[union-attr]
            assert answer.choices[0].finish_reason == "tool_calls"
            assert answer.usage is not None
            assert answer.usage.completion_tokens < 300


@pytest.mark.parametrize("form", FORMS, ids=lambda form: type(form).__name__)
def test_a_call_too_many_is_seen_in_every_form(form: CallFormat, running: Running) -> None:
    """At the same token, however many of them come at once."""
    tokenizer = running.service.tokenizer
    one = Walks(form.forced(Callee.of(TOOLS[1]))).text(random.Random(2))
    for most in (1, 3):
        by_calls, at_once = (CallWatch(tokenizer, (), form, schemas_of(TOOLS), most) for _ in range(2))
        allowed = tokenizer.encode(form.between.join([one] * most))
        assert by_calls.push(allowed) is None
        ends = by_calls.push(tokens := tokenizer.encode(form.between + one))
        assert ends is not None
        assert at_once.push([*allowed, *tokens, *tokens]) == len(allowed) + ends


LETTERS = {"type": "object", "properties": {"letter": {"enum": ["a", "bc"]}}, "required": ["letter"]}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "nothing"}}}, "tool_choice"),
        ({"tool_choice": "required", "regex": "a"}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "function", "function": {"name": "a b"}}]}, None),
    ],
)
def test_forced_calls_that_cannot_be_had_are_refused(
    client: httpx.Client, running: Running, monkeypatch: pytest.MonkeyPatch, more: dict, param: str | None
) -> None:
    tokenizer = running.service.tokenizer
    vocabulary = replace(tokenizer.vocabulary, chat_template=TEMPLATES["json"])
    monkeypatch.setattr(tokenizer, "vocabulary", vocabulary)
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, "max_tokens": 2, **more}
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
