"""Calls of functions in the form of each family, as its templates and documents have it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from running import Running

from specjax.serving.tools.call import CallFormat, schemas_of
from specjax.serving.tools.formats import format_of
from specjax.serving.tools.gemma_calls import GemmaCalls
from specjax.serving.tools.json_calls import BareJson, MarkedJson
from specjax.serving.tools.responses import beside_calls
from specjax.serving.tools.splitting import Splitter
from specjax.serving.tools.tagged_calls import TaggedFunctions, TaggedPairs

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "units": {"type": "array"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
WANTED = ("weather", {"city": 'S\u00e3o "Paulo"', "days": 3, "units": ["C", "mm"]})
CITY = 'S\u00e3o "Paulo"'

CALLS: list[tuple[CallFormat, str, list[tuple[str, Any]]]] = [
    (
        MarkedJson(),
        '<tool_call>\n{"name": "weather", "arguments": '
        '{"city": "S\u00e3o \\"Paulo\\"", "days": 3, "units": ["C", "mm"]}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        [WANTED, ("now", {})],
    ),
    (
        TaggedFunctions(),
        f"<tool_call>\n<function=weather>\n<parameter=city>\n{CITY}\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
        '<parameter=units>\n["C", "mm"]\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>'
        "\n</function>",
        [WANTED, ("now", {})],
    ),
    (
        TaggedPairs(),
        f"<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n<arg_key>days</arg_key>\n"
        '<arg_value>3</arg_value><arg_key>units</arg_key><arg_value>["C", "mm"]</arg_value>\n</tool_call>'
        "<tool_call>now",
        [WANTED, ("now", {})],
    ),
    (
        GemmaCalls(),
        f'<|tool_call>call:weather{{city:<|"|>{CITY}<|"|>,days:3,units:[<|"|>C<|"|>,<|"|>mm<|"|>]}}<tool_call|>'
        "<|tool_call>call:now{}<tool_call|>",
        [WANTED, ("now", {})],
    ),
    (
        BareJson(),
        '{"name": "weather", "parameters": {"city": "S\u00e3o \\"Paulo\\"", "days": 3, "units": ["C", "mm"]}}; '
        '{"name": "now", "parameters": {}}',
        [WANTED, ("now", {})],
    ),
]


def named(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("form", "text", "wanted"), CALLS, ids=named)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_found_in_whole_texts_and_in_pieces(form: CallFormat, text: str, wanted: Any, size: int) -> None:
    splitter = Splitter(form, schemas_of(TOOLS))
    said = "I look < it up.\n" + text
    shown = "".join(splitter.push(said[begin : begin + size]) for begin in range(0, len(said), size))
    rest, calls = splitter.end()
    assert (shown, rest) == ("I look < it up.\n", "")
    assert [(call.name, json.loads(call.arguments)) for call in calls] == wanted


@pytest.mark.parametrize("form", [form for form, *_ in CALLS], ids=named)
@pytest.mark.parametrize("rest", ["", "?", " { [ <", "call:", "\n\n</tool_call>", '<|"|>', "{" * 500, "[" * 500])
def test_what_is_no_call_stays_text(form: CallFormat, rest: str) -> None:
    said = f"see {form.openers[0]}{rest}"
    splitter = Splitter(form, schemas_of(TOOLS))
    shown = splitter.push(said)
    assert shown + splitter.end()[0] == said


def test_values_that_may_be_texts_stay_texts() -> None:
    text = '<tool_call><function=weather><parameter=city>\n42\n</parameter><parameter=other>\n{"a": 1}\n</parameter>'
    (call,) = TaggedFunctions().calls(text, schemas_of(TOOLS)) or ()
    assert json.loads(call.arguments) == {"city": "42", "other": {"a": 1}}


def test_nested_values_of_gemma() -> None:
    text = '<|tool_call>call:f{a:{b:[1,-2.5,true,null],c:<|"|>x,}<|"|>},d:plain word}<tool_call|>'
    (call,) = GemmaCalls().calls(text, {}) or ()
    assert json.loads(call.arguments) == {"a": {"b": [1, -2.5, True, None], "c": "x,}"}, "d": "plain word"}


def test_templates_say_which_form_a_model_has() -> None:
    assert format_of(None) is None
    assert format_of("{{ messages }}") is None
    said = {
        "{% if tools %}<tool_call>{'name': f}": MarkedJson,
        "{% if tools %}<tool_call>\n<function=example>": TaggedFunctions,
        "{% if tools %}<tool_call>{f}<arg_key>": TaggedPairs,
        "{% if tools %}<|tool_call>call:": GemmaCalls,
        "{% if tools is not none %}<|python_tag|>": BareJson,
    }
    for template, form in said.items():
        assert type(format_of(template)) is form


def test_answers_of_functions_stand_beside_their_calls() -> None:
    calls = [{"id": each, "type": "function", "function": {"name": f"f{each}", "arguments": {}}} for each in "12"]
    messages: list[Any] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "content": '{"n": 1}', "tool_call_id": "2"},
        {"role": "tool", "content": "plain", "tool_call_id": "1"},
        {"role": "user", "content": "!"},
        {"role": "tool", "content": "of nothing"},
    ]
    moved = beside_calls(messages)
    assert [message["role"] for message in moved] == ["user", "assistant", "user", "tool"]
    answers = [{"name": "f2", "response": {"n": 1}}, {"name": "f1", "response": "plain"}]
    assert moved[1] == {**messages[1], "tool_responses": answers}
    assert "tool_responses" not in messages[1]


TEMPLATE = """{% if tools %}{% for tool in tools %}{{ tool.function.name }}
{% endfor %}Call: <tool_call>{"name": ...}</tool_call>
{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}{% for call in message.tool_calls %}
{{ call.function.arguments.days }}{% endfor %}
{% endfor %}"""


def test_calls_come_as_the_client_of_openai_wants_them(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A regular expression makes the model call."""
    vocabulary = running.service.tokenizer.vocabulary
    monkeypatch.setattr(running.service.tokenizer, "vocabulary", replace(vocabulary, chat_template=TEMPLATE))
    called = r'ok <tool_call>\{"name": "weather", "arguments": \{"days": [1-9]\}\}</tool_call>'
    asked: Any = {
        "model": "demo",
        "messages": [{"role": "user", "content": "how is it?"}],
        "tools": TOOLS,
        "temperature": 0,
        "max_tokens": 60,
        "extra_body": {"regex": called},
    }
    whole = running.openai.chat.completions.create(**asked)
    choice = whole.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "ok")
    (call,) = choice.message.tool_calls or ()
    assert (call.type, call.function.name) == ("function", "weather")  # type: ignore[union-attr]
    days = json.loads(call.function.arguments)["days"]  # type: ignore[union-attr]
    assert days in range(1, 10)
    content, calls = "", []
    for event in running.openai.chat.completions.create(**asked, stream=True):
        content += event.choices[0].delta.content or ""
        calls += event.choices[0].delta.tool_calls or []
    assert content == "ok "
    assert [(each.index, each.function.name) for each in calls] == [(0, "weather")]
    messages = [*asked["messages"], choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    again = running.openai.chat.completions.create(**{**asked, "messages": messages, "max_tokens": 1})
    functions = 'weather\nnow\nCall: <tool_call>{"name": ...}</tool_call>\n'
    shown = f"{functions}user: how is it?assistant: ok{days}tool: sunny"  # line breaks after blocks are left out
    assert again.usage is not None
    assert again.usage.prompt_tokens == len(running.model.encode(shown))


def test_a_model_without_functions_refuses_them(client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "tools": TOOLS, "max_tokens": 2}
    answer = client.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert client.post("/v1/chat/completions", json={**body, "tool_choice": "none"}).status_code == 200
    assert client.post("/v1/chat/completions", json={**body, "tool_choice": "required"}).status_code == 400
