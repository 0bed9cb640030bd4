"""/v1/chat/completions: conversations are continued."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from checkpoints.tokenizers.chat_template import Message, render
from specjax.serving.answers import chat_logprobs, reason_of
from specjax.serving.endpoint import Answering, Endpoint, Prepared
from specjax.serving.errors import refused
from specjax.serving.forms import ChatForm, MessageForm
from specjax.serving.parts import Part
from specjax.serving.reading_bodies import read_form
from specjax.serving.wishes import options_of


class ChatAnswer(Answering):
    """An answer of /v1/chat/completions."""

    form: ChatForm

    async def begin(self) -> Sequence[dict[str, Any]]:
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(len(self.choices))]

    def event(self, index: int, part: Part) -> Sequence[dict[str, Any]]:
        delta = {"content": part.text} if part.text or part.end is None else {}
        more = self.trace(index, part)
        if self.form.logprobs:
            more["logprobs"] = self._logprobs(part)
        return [self._chunk(index, delta, reason_of(part.end), **more)]

    def whole(self) -> dict[str, Any]:
        choices = []
        for index, choice in enumerate(self.choices):
            message = {"role": "assistant", "content": choice.text, "refusal": None}
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(choice) if self.form.logprobs else None,
                    "finish_reason": reason_of(choice.end),
                    **self.trace(index, choice),
                }
            )
        return self.document("chat.completion", choices)

    def last(self) -> dict[str, Any]:
        return self.document("chat.completion.chunk", [])

    def _logprobs(self, part: Any) -> dict[str, Any]:
        top = self.form.top_logprobs or 0
        return chat_logprobs(self.service.tokenizer, part.tokens, part.logprobs, top)

    def _chunk(self, index: int, delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason, **more}
        return self.document("chat.completion.chunk", [choice])


class Chat(Endpoint[ChatForm]):
    """/v1/chat/completions."""

    form, prefix, answering = ChatForm, "chatcmpl", ChatAnswer

    def prepare(self, form: ChatForm) -> Prepared:
        service = self.service
        count = form.n or 1
        if count > service.settings.limits.choices:
            raise refused(f"n is {count}; ask for 1 to {service.settings.limits.choices} texts", param="n")
        if form.top_logprobs and not form.logprobs:
            raise refused("top_logprobs is given without logprobs; set logprobs to true", param="top_logprobs")
        service.check_wanted(form)
        prompt = service.model.encode(self._text(form))
        room = service.room(prompt)
        wanted = form.max_completion_tokens or form.max_tokens
        limit = service.settings.limits.tokens
        options = options_of(form, service.settings.defaults, service.most_drafts, wanted or min(room, limit))
        wishes = [
            service.wish(prompt, options, sequence=sequence, traced=bool(form.trace), scored=bool(form.logprobs))
            for sequence in range(count)
        ]
        return Prepared(wishes, [len(prompt)])

    async def apply_template(self, request: Request) -> Response:
        """POST /apply-template: the text of a conversation, as llama.cpp's server gives it."""
        form = await read_form(request, ChatForm, self.service.settings.limits)
        return JSONResponse({"prompt": await asyncio.to_thread(self._text, form)})

    def _text(self, form: ChatForm) -> str:
        """The conversation as one text, up to where the model goes on."""
        tokenizer = self.service.tokenizer
        messages = [_message(each) for each in form.messages]
        if tokenizer.vocabulary.chat_template is None:
            lines = [each["content"] + ("" if each["content"].endswith("\n") else "\n") for each in messages]
            return "".join(lines)
        return render(tokenizer, messages, continue_last=bool(form.continue_last))


def _message(form: MessageForm) -> Message:
    """A message as templates know it."""
    content = form.content
    if isinstance(content, list):
        content = "".join(part.text for part in content)
    role = "system" if form.role == "developer" else form.role
    return {"role": role, "content": content or ""}
