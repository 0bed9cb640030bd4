"""What the two kinds of completions have in common: from a body to an answer, whole or as a stream."""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from checkpoints import StreamDecoder
from specjax.grammar.compile import Structure
from specjax.serving.answers import Choice, trace_of, usage_of
from specjax.serving.errors import ApiError, answer_of, refused
from specjax.serving.forms import Wanted
from specjax.serving.parts import Made, Part
from specjax.serving.reading_bodies import read_form, unless_gone
from specjax.serving.service import Service
from specjax.serving.sessions import Turn
from specjax.serving.worker import Wish

AForm = TypeVar("AForm", bound=Wanted)
Value = TypeVar("Value")
Events = AsyncGenerator[dict[str, Any], None]


@dataclass(frozen=True)
class Prepared:
    """A request that can be done.

    Attributes:
        wishes: its texts, which are its choices.
        prompt_tokens: tokens of each of its prompts.
        structure: what the texts are held to; they get the grammar before they are asked for.
        told: what the endpoint has to remember of it.
    """

    wishes: Sequence[Wish]
    prompt_tokens: Sequence[int]
    structure: Structure | None = None
    told: Any = None


class Deadline:
    """Waits for the parts of a request's work, as long as the whole of it may take."""

    def __init__(self, seconds: float) -> None:
        """
        Args:
            seconds: how long that is, from now on.
        """
        self._seconds, self._end = seconds, asyncio.get_running_loop().time() + seconds

    async def __call__(self, work: Awaitable[Value]) -> Value:
        """Wait for a part of the work.

        Raises:
            ApiError: the time is over.
        """
        try:
            async with asyncio.timeout_at(self._end) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the request took longer than {self._seconds:g} seconds, as long as this server allows"
            raise ApiError(504, message, code="timeout") from None


class Answering(ABC):
    """One answer, as it grows."""

    def __init__(self, endpoint: Endpoint, form: Wanted, prepared: Prepared) -> None:
        """
        Args:
            endpoint: what is asked.
            form: how.
            prepared: what came of the form.
        """
        self.service, self.form, self.prepared = endpoint.service, form, prepared
        self.choices = [Choice() for _ in prepared.wishes]
        self.head = {"id": f"{endpoint.prefix}-{uuid4().hex}", "created": int(time.time())}
        self._traces: list[StreamDecoder] = [endpoint.service.tokenizer.stream(special=False) for _ in self.choices]

    def trace(self, index: int, part: Part) -> dict[str, Any]:
        """The field `trace` of a part of a choice, if it was asked for."""
        return self._trace(part.made, self._traces[index])

    def whole_trace(self, index: int) -> dict[str, Any]:
        """The field `trace` of a whole choice, if it was asked for."""
        return self._trace(self.choices[index].made, self.service.tokenizer.stream(special=False))

    def _trace(self, made: Sequence[Made], text: StreamDecoder) -> dict[str, Any]:
        return {"trace": trace_of(self.service.tokenizer, made, text)} if self.form.trace else {}

    def usage(self) -> dict[str, Any]:
        """What the request has cost; all of its texts have ended."""
        return usage_of([each.end for each in self.choices if each.end is not None], self.prepared.prompt_tokens)

    def reply(self) -> Sequence[int]:
        """The tokens that a session takes in as what the model said."""
        return self.choices[0].tokens

    def document(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """An answer, or an event of a stream, with these choices."""
        return {**self.head, "object": kind, "model": self.service.settings.name, "choices": list(choices)}

    @abstractmethod
    async def begin(self) -> Sequence[dict[str, Any]]:
        """Events before the first part; also what is needed of a whole answer before its texts."""

    @abstractmethod
    def event(self, index: int, part: Part) -> Sequence[dict[str, Any]]:
        """The events that tell of a part of a choice, which has been added to it."""

    @abstractmethod
    def whole(self) -> dict[str, Any]:
        """The answer as one document, without usage."""

    @abstractmethod
    def last(self) -> dict[str, Any]:
        """The event that carries the usage, without it."""


class Endpoint(ABC, Generic[AForm]):
    """A path of the API whose answers are texts.

    Attributes:
        form: the type of its bodies.
        prefix: with which its answers' ids begin.
        answering: the type of its answers.
    """

    form: type[AForm]
    prefix: str
    answering: type[Answering]

    def __init__(self, service: Service) -> None:
        """
        Args:
            service: what does the work.
        """
        self.service = service

    @abstractmethod
    def prepare(self, form: AForm, turn: Turn | None) -> Prepared:
        """What a body asks for; runs beside the event loop.

        Args:
            form: the body.
            turn: of the session that it names, if it names one.

        Raises:
            Exception: it cannot be done; see `answer_of`.
        """

    async def __call__(self, request: Request) -> Response:
        """Answer a request."""
        form = await read_form(request, self.form, self.service.settings.limits)
        self.service.check_model(form.model)
        client = f"{request.client.host if request.client else ''} {form.user or ''}"
        events = self._events(form, client)
        if not form.stream:
            return JSONResponse(await unless_gone(request, _last_of(events)))
        first = await unless_gone(request, anext(events))  # errors that come at once have a status of their own
        return StreamingResponse(_lines(first, events, self.service), media_type="text/event-stream", headers=NO_BUFFER)

    async def _events(self, form: AForm, client: str) -> Events:
        """The events of a stream, or the one document that a whole answer is."""
        in_time = Deadline(self.service.settings.limits.seconds)
        turn = None
        if form.session is not None:
            if (form.n or 1) > 1:
                raise refused(f"n is {form.n}, but a turn of a session is one text; leave n out", param="n")
            turn = await asyncio.to_thread(self.service.sessions.begin, form.session)
        try:
            prepared = await in_time(asyncio.to_thread(self.prepare, form, turn))
            if prepared.structure is not None:
                grammar = await in_time(self.service.grammars.get(prepared.structure))
                prepared = replace(prepared, wishes=[wish.held_to(grammar) for wish in prepared.wishes])
            answering = self.answering(self, form, prepared)
            async with aclosing(self._parts(answering, client, in_time)) as events:
                async for event in events:
                    if form.stream:
                        yield event
            if turn is not None:
                await asyncio.to_thread(self.service.sessions.end, turn, answering.reply())
        finally:
            if turn is not None:
                self.service.sessions.give_up(turn)
        if not form.stream:
            yield {**answering.whole(), "usage": answering.usage()}
        elif form.stream_options is not None and form.stream_options.include_usage:
            yield {**answering.last(), "usage": answering.usage()}

    async def _parts(self, answering: Answering, client: str, in_time: Deadline) -> Events:
        """The events that tell of the texts."""
        begun = time.monotonic()
        first = True
        async with self.service.asking(answering.prepared.wishes, client) as asked:
            for event in await in_time(answering.begin()):
                yield event
            parts = aiter(asked)
            while True:
                try:
                    index, part = await in_time(anext(parts))
                except StopAsyncIteration:
                    break
                if first:
                    self.service.metrics.first_token.observe(time.monotonic() - begun)
                    first = False
                answering.choices[index].add(part)
                for event in answering.event(index, part):
                    yield event


async def _last_of(events: Events) -> dict[str, Any]:
    async with aclosing(events):
        last: dict[str, Any] = {}
        async for event in events:
            last = event
        return last


NO_BUFFER = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Headers that keep proxies from holding a stream back."""


async def _lines(first: dict[str, Any], events: Events, service: Service) -> AsyncGenerator[str, None]:
    """Events as lines of a stream. An error that comes later is an event too, and the last one."""
    try:
        async with aclosing(events):
            yield _line(first)
            async for event in events:
                yield _line(event)
    except Exception as error:
        yield _line(answer_of(error, service.model.path).body())
    yield "data: [DONE]\n\n"


def _line(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"
