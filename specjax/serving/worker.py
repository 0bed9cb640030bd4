"""The thread that drives the engine. Handlers of requests ask it for texts, and are told what becomes known."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from specjax.decoding.grammar import Grammar
from specjax.runtime.engine import Engine
from specjax.runtime.request import Job, Request, TokenLogprobs, Update
from specjax.runtime.stop_strings import StopStrings
from specjax.serving.errors import ApiError, refused
from specjax.serving.fair_queue import FairQueue, QueueFull
from specjax.serving.parts import End, Part, made_of

Value = TypeVar("Value")
AnEngine = TypeVar("AnEngine", bound=Engine)
Work = Generator[None, None, Value]
"""Something for the engine's thread that is not a text. It yields wherever rounds of texts may come in between."""

AHEAD = 1
"""Texts that wait in the engine's own queue, so that a free seat is taken at once. The others wait in the fair one."""

LEAD = 0.008
"""Seconds before rounds are done at which the next ones are started. It takes the host some milliseconds, and estimates
are not exact."""

LOOK = 0.001
"""Seconds between two looks whether rounds are done."""


class Observer(Protocol):
    """Is told what the engine does, for figures."""

    def stepped(self, seconds: float) -> None:
        """A step of the engine has ended that took so long."""
        ...

    def updated(self, update: Update) -> None:
        """Tokens of a text became known."""
        ...

    def failed(self) -> None:
        """The engine has failed and was replaced."""
        ...


@dataclass(frozen=True, eq=False)
class Wish:
    """One text that a client wants.

    Attributes:
        request: for the engine.
        text: the request's own watch, which turns tokens into text.
        traced: whether the client wants to know how each token was made.
    """

    request: Request
    text: StopStrings
    traced: bool = False

    def held_to(self, grammar: Grammar) -> Wish:
        """The same, of a text that keeps to a grammar."""
        settings = replace(self.request.settings, grammar=grammar)
        return replace(self, request=replace(self.request, settings=settings))


class Asked:
    """Texts of one request, on their way. Iterate over it to get each part with the number of its text."""

    def __init__(self, count: int) -> None:
        self._parts: asyncio.Queue[tuple[int, Part] | Exception] = asyncio.Queue()
        self._left = count
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[tuple[int, Part]]:
        return self

    async def __anext__(self) -> tuple[int, Part]:
        if not self._left:
            raise StopAsyncIteration
        got = await self._parts.get()
        if isinstance(got, Exception):
            self._left = 0
            raise got
        self._left -= got[1].end is not None
        return got

    def tell(self, index: int, news: Part | Exception) -> None:
        """Pass on what became known of a text; from any thread."""
        item = news if isinstance(news, Exception) else (index, news)
        _call_in(self._loop, self._parts.put_nowait, item)


@dataclass(eq=False)
class _Text:
    """A wish and what has come of it."""

    wish: Wish
    index: int
    asked: Asked
    job: Job | None = None
    logprobs: int = 0
    dropped: bool = field(default=False)

    def part(self, update: Update) -> Part:
        """What an update adds to the text."""
        job, wish = update.job, self.wish
        text = wish.text.shown()
        end = None
        if job.finish_reason is not None:
            text += wish.text.rest()
            prompt = len(job.request.prompt)
            end = End(job.finish_reason, prompt, job.reused, len(job.tokens), job.stats, job.finite)
        return Part(text, update.tokens, self._new_logprobs(job), made_of(update) if wish.traced else (), end)

    def _new_logprobs(self, job: Job) -> Sequence[TokenLogprobs]:
        new, self.logprobs = job.logprobs[self.logprobs :], len(job.logprobs)
        return new


class Worker(Generic[AnEngine]):
    """Runs an engine in a thread of its own.

    Attributes:
        engine: what runs; only the worker's thread may change it.
        queue: texts that wait.
        stopping: whether nothing more is taken.
        failed: whether the engine has failed, and no other one could be made.
    """

    def __init__(self, make_engine: Callable[[], AnEngine], most_waiting: int, observer: Observer) -> None:
        """
        Args:
            make_engine: also makes another one, should the first one fail.
            most_waiting: texts that may wait for a seat.
            observer: is told what happens.
        """
        self._make_engine, self._observer = make_engine, observer
        self.engine = make_engine()
        self.queue: FairQueue[_Text] = FairQueue(most_waiting)
        self.stopping = self.failed = False
        self._texts: dict[Job, _Text] = {}
        self._calls: deque[Callable[[], object]] = deque()
        self._work: deque[tuple[Work, asyncio.Future, asyncio.AbstractEventLoop]] = deque()
        self._waiting: set[Callable[[Exception], None]] = set()  # each of them tells a request that it has failed
        self._news = threading.Event()
        context = contextvars.copy_context()  # kernels and listeners are chosen by context
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="engine", daemon=True)

    # What handlers call, in the thread of the event loop

    def start(self) -> None:
        """Begin to work on what is asked for."""
        self._thread.start()

    def stop(self) -> None:
        """Let the thread end after its step. Those who wait are told at once: a step can take long."""
        self._end(ApiError(503, "the server has ended", code="ending"))
        self._news.set()

    def _end(self, error: Exception) -> None:
        self.stopping = True
        for tell in tuple(self._waiting):
            tell(error)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join()

    def ask(self, wishes: Sequence[Wish], client: str) -> tuple[Asked, Callable[[], None]]:
        """Ask for texts.

        Args:
            wishes: the texts of one request.
            client: those of one client wait in one line, and lines take turns.

        Returns:
            The texts on their way, and a function that gives up those that have not ended.

        Raises:
            ApiError: too many texts wait, the request alone has too many, or the server is about to end.
        """
        if len(wishes) > (most := self.queue.most + self.engine.seats):
            raise refused(f"{len(wishes)} texts are asked for; this server takes at most {most} of one request")
        asked = Asked(len(wishes))
        texts = [_Text(wish, index, asked) for index, wish in enumerate(wishes)]
        try:
            self.queue.put(client, texts, idle=max(0, self.engine.seats - self.engine.load))
        except QueueFull as error:
            message = f"the server is busy: {error}; try again later"
            raise ApiError(429, message, code="queue_full", headers={"Retry-After": "1"}) from None
        tell = partial(asked.tell, 0)
        self._waiting.add(tell)
        self._check_going()
        self._news.set()

        def give_up() -> None:
            self._waiting.discard(tell)
            self._calls.append(partial(self._give_up, texts))
            self._news.set()

        return asked, give_up

    async def do(self, work: Work[Value]) -> Value:
        """Let the engine's thread do something that is not a text, piece by piece between rounds."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Value] = loop.create_future()
        tell = partial(_settle, loop, future, future.set_exception)
        self._waiting.add(tell)
        try:
            self._check_going()
            self._work.append((work, future, loop))
            self._news.set()
            return await future
        finally:
            self._waiting.discard(tell)

    def _check_going(self) -> None:
        """Raise `ApiError` if the thread has ended: it tells only those who were in `_waiting` then."""
        if self.failed:
            raise _engine_failed()
        if self.stopping:
            raise ApiError(503, "the server is about to end", code="ending", headers={"Retry-After": "5"})

    # The thread

    def _run(self) -> None:
        try:
            while not self.stopping:
                try:
                    self._do_what_there_is()
                except Exception as error:  # whatever it is: the state may be gone, and those who wait must hear of it
                    self._recover(error)
        except Exception as error:
            self.failed = True
            traceback.print_exception(error, file=sys.stderr)
            self._end(_engine_failed())

    def _do_what_there_is(self) -> None:
        self._leave_time()
        self._news.clear()
        while self._calls:
            self._calls.popleft()()
        self._admit()
        if self.engine.idle and not self._work:
            self._news.wait()
            return
        if not self.engine.idle:
            self._step()
        if self._work:
            self._work_on(*self._work.popleft())

    def _leave_time(self) -> None:
        """Start nothing as long as rounds run: requests that come meanwhile would have to wait for it as well."""
        while not (self.stopping or self._work) and (left := self.engine.seconds_left - LEAD) > 0:
            time.sleep(min(left, LOOK))

    def _admit(self) -> None:
        """Give the engine as many texts as it has seats for, and a few that wait."""
        while self.engine.load < self.engine.seats + AHEAD and (text := self.queue.take()) is not None:
            if text.dropped:
                continue
            try:
                text.job = self.engine.submit(text.wish.request)
            except Exception as error:
                self._tell(text, error)
            else:
                self._texts[text.job] = text

    def _step(self) -> None:
        """Do a step of the engine. What it brings is told when the step is over, and all that belongs to it is kept."""
        begin, told = time.perf_counter(), list[tuple[_Text, Part]]()
        try:
            for update in self.engine.step(live=True):
                self._observer.updated(update)
                if (text := self._texts.get(update.job)) is not None:
                    told.append((text, text.part(update)))
                    if update.job.finish_reason is not None:
                        del self._texts[update.job]
        finally:
            for text, part in told:
                self._tell(text, part)
            self._observer.stepped(time.perf_counter() - begin)

    def _recover(self, error: Exception) -> None:
        """Go on with a new engine; the texts of the old one are lost."""
        texts = [*self._texts.values()]
        self._texts.clear()
        for text in texts:
            self._tell(text, error)
        self._observer.failed()
        self.engine = self._make_engine()

    def _work_on(self, work: Work, future: asyncio.Future, loop: asyncio.AbstractEventLoop) -> None:
        """Do a piece of it."""
        try:
            if future.cancelled():
                work.close()
                return
            next(work)
            self._work.append((work, future, loop))
        except StopIteration as end:
            _settle(loop, future, future.set_result, end.value)
        except Exception as error:
            _settle(loop, future, future.set_exception, error)

    def _give_up(self, texts: Sequence[_Text]) -> None:
        for text in texts:
            text.dropped = True
            if text.job is None:
                self.queue.remove(text)
            elif self._texts.pop(text.job, None) is not None:
                self.engine.cancel(text.job)

    def _tell(self, text: _Text, news: Part | Exception) -> None:
        if not text.dropped:
            text.asked.tell(text.index, news)


def _engine_failed() -> ApiError:
    return ApiError(503, "the engine has failed, and no other one could be made", code="engine_failed")


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future, setter: Callable[[Any], None], value: Any) -> None:
    """Tell a future how it ended, unless nobody waits for it any more."""
    _call_in(loop, lambda: None if future.done() else setter(value))


def _call_in(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *values: object) -> None:
    """Call a function in the thread of a loop. If the loop has ended, whoever waited has ended with it."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(function, *values)
