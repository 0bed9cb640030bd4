"""The path /v1/chat/completions: the model goes on with a conversation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from checkpoints.tokenizers.chat_template import Message, render
from specjax.grammar.compile import Structure
from specjax.serving.answers import chat_logprobs, reason_of
from specjax.serving.endpoint import Answering, Endpoint, Prepared
from specjax.serving.errors import refused
from specjax.serving.forms import ChatForm, MessageForm, ToolCall, ToolChoice
from specjax.serving.parts import End, Part
from specjax.serving.reading_bodies import read_form
from specjax.serving.sessions import Turn
from specjax.serving.tools.call import Call, CallFormat, Schemas, schemas_of
from specjax.serving.tools.formats import format_of
from specjax.serving.tools.responses import beside_calls
from specjax.serving.tools.splitting import Splitter
from specjax.serving.tools.watching import MOST_CALLS, CallWatch
from specjax.serving.wishes import options_of, structure_of

THOUGHT = ("<think>", "</think>")
"""Tokens that begin and end what a model thinks before it answers."""


@dataclass(frozen=True)
class Tools:
    """What a conversation may call.

    Attributes:
        form: how the model writes calls.
        schemas: of the functions.
        most: how many calls one answer may have.
        forced: what the answer is held to, if it must be calls; `compiling.regex_of` reads it.
    """

    form: CallFormat
    schemas: Schemas
    most: int
    forced: str | None = None


class ChatAnswer(Answering):
    """What a conversation is answered with."""

    form: ChatForm

    async def begin(self) -> Sequence[dict[str, Any]]:
        tools: Tools | None = self.prepared.told
        self._splitters = [Splitter(tools.form, tools.schemas) if tools else None for _ in self.choices]
        self._contents = [""] * len(self.choices)
        self._calls: list[list[dict[str, Any]]] = [[] for _ in self.choices]
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(len(self.choices))]

    def event(self, index: int, part: Part) -> Sequence[dict[str, Any]]:
        text = part.text
        if (splitter := self._splitters[index]) is not None:
            text = splitter.push(text)
            if part.end is not None:
                rest, calls = splitter.end()
                text += rest
                self._calls[index] = [_told(call) for call in calls[: self.prepared.told.most]]
        self._contents[index] += text
        delta: dict[str, Any] = {"content": text} if text or part.end is None else {}
        if self._calls[index]:
            delta["tool_calls"] = [{"index": number, **call} for number, call in enumerate(self._calls[index])]
        more = self.trace(index, part)
        if self.form.logprobs:
            more["logprobs"] = self._logprobs(part)
        return [self._chunk(index, delta, self._reason(index, part.end), **more)]

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self.choices):
            message: dict[str, Any] = {"role": "assistant", "content": self._contents[index], "refusal": None}
            if self._calls[index]:
                message |= {"content": self._contents[index].strip() or None, "tool_calls": self._calls[index]}
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(choice) if self.form.logprobs else None,
                    "finish_reason": self._reason(index, choice.end),
                    **self.whole_trace(index),
                }
            )
        return self.document("chat.completion", choices)

    def _reason(self, index: int, end: End | None) -> str | None:
        return "tool_calls" if self._calls[index] and end is not None else reason_of(end)

    def last(self) -> dict[str, Any]:
        return self.document("chat.completion.chunk", [])

    def _logprobs(self, part: Any) -> dict[str, Any]:
        top = self.form.top_logprobs or 0
        return chat_logprobs(self.service.tokenizer, part.tokens, part.logprobs, top)

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason, **more}
        return self.document("chat.completion.chunk", [choice])


class Chat(Endpoint[ChatForm]):
    """Takes conversations, and answers with messages."""

    form, prefix, answering = ChatForm, "chatcmpl", ChatAnswer

    def prepare(self, form: ChatForm, turn: Turn | None) -> Prepared:
        """The texts that go on with the conversation."""
        service = self.service
        count = form.n or 1
        if count > service.settings.limits.choices:
            raise refused(f"n is {count}; ask for 1 to {service.settings.limits.choices} texts", param="n")
        if form.top_logprobs and not form.logprobs:
            raise refused("top_logprobs is given without logprobs; set logprobs to true", param="top_logprobs")
        service.check_wanted(form)
        tools = self._tools(form)
        text = self._text(form, tools)
        prompt = service.encode(text)
        room = service.room(prompt)
        wanted = form.max_completion_tokens or form.max_tokens
        limit = service.settings.limits.tokens
        most = min(room, limit, service.settings.default_tokens or limit)
        drafting = service.most_drafts, service.model.drafter_names
        options = options_of(form, service.settings.defaults, *drafting, wanted or most, limit)
        wishes = [
            service.wish(
                prompt,
                options,
                sequence=sequence,
                traced=bool(form.trace),
                scored=bool(form.logprobs),
                watch=CallWatch(service.tokenizer, options.stop, tools.form, tools.schemas, tools.most)
                if tools
                else None,
                turn=turn,
            )
            for sequence in range(count)
        ]
        structure = self._structure(tools, text) or structure_of(options)
        return Prepared(wishes, [len(prompt)], structure, tools)

    async def apply_template(self, request: Request) -> Response:
        """POST /apply-template: the text of a conversation, as llama.cpp's server gives it."""
        form = await read_form(request, ChatForm, self.service.settings.limits)
        return JSONResponse({"prompt": await asyncio.to_thread(lambda: self._text(form, self._tools(form)))})

    def _tools(self, form: ChatForm) -> Tools | None:
        """What the conversation may call; None if it calls nothing."""
        if not form.tools and form.tool_choice not in (None, "auto", "none"):
            raise refused(
                "tool_choice forces a call, and there are no tools; give tools, or leave it out", "tool_choice"
            )
        if not form.tools or form.tool_choice == "none":
            return None
        written = format_of(self.service.tokenizer.vocabulary.chat_template)
        if written is None:
            raise refused("the model's chat template knows no functions of a known form; leave tools out", "tools")
        tools = [tool.model_dump() for tool in form.tools]
        several = form.parallel_tool_calls is not False
        forced = _forced(form, self.service.tokenizer.vocabulary.chat_template, tools, several)
        return Tools(written, schemas_of(tools), MOST_CALLS if several else 1, forced)

    def _structure(self, tools: Tools | None, text: str) -> Structure | None:
        """What a forced call holds the answer to. Where the prompt has begun a thought, this is free."""
        if tools is None or tools.forced is None:
            return None
        after = THOUGHT[1] if text.rstrip().endswith(THOUGHT[0]) else None
        return Structure("calls", tools.forced, after, tuple(tools.form.marks))

    def _text(self, form: ChatForm, tools: Tools | None) -> str:
        """The conversation as one text, up to where the model goes on."""
        tokenizer = self.service.tokenizer
        messages = [_message(each) for each in form.messages]
        if tokenizer.vocabulary.chat_template is None:
            lines = [each["content"] + ("" if each["content"].endswith("\n") else "\n") for each in messages]
            return "".join(lines)
        if "tool_responses" in tokenizer.vocabulary.chat_template:
            messages = beside_calls(messages)
        functions = [tool.model_dump(exclude_none=True) for tool in form.tools or ()] if tools else None
        more = form.chat_template_kwargs
        return render(tokenizer, messages, continue_last=bool(form.continue_last), tools=functions, more=more)


def _forced(form: ChatForm, template: str | None, tools: Sequence[dict[str, Any]], several: bool) -> str | None:
    """The calls that a request forces, as `compiling.regex_of` reads them; None if it forces none.

    Raises:
        ApiError: no such function is there, or the answer is to be something else as well.
    """
    choice = form.tool_choice
    if choice in (None, "auto", "none"):
        return None
    wanted = (form.response_format and form.response_format.type != "text", form.json_schema, form.regex)
    if any(wanted):
        raise refused("tool_choice forces a call, and the answer is held to a structure too; give one", "tool_choice")
    if isinstance(choice, ToolChoice):
        name, several = choice.function.name, False
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        if not tools:
            raise refused(f"tool_choice names {name!r}, which is not among the tools", "tool_choice")
    return json.dumps([template, tools, several])


def _message(form: MessageForm) -> Message:
    """A message as templates know it."""
    content = form.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    role = "system" if form.role == "developer" else form.role
    message = Message(role=role, content=content or "")
    if form.tool_calls:
        message["tool_calls"] = [_called(call) for call in form.tool_calls]
    for name in ("name", "tool_call_id", "reasoning_content"):
        if (value := getattr(form, name)) is not None:
            message[name] = value
    return message


def _called(call: ToolCall) -> dict[str, Any]:
    """A call that was made, with its arguments as values, as templates want them."""
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = call.function.arguments
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _told(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid4().hex[:24]}", "type": "function", "function": function}
