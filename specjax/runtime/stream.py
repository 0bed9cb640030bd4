"""Generations in progress: text in pieces, and results at the end."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from specjax.errors import NonFiniteWarning, SpecjaxError
from specjax.runtime.engine import Engine
from specjax.runtime.generation import Generation
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prefixes import DEFAULT_PREFIX_BYTES, worth_sharing
from specjax.runtime.prompts import check_prompts
from specjax.runtime.recording import trace_of
from specjax.runtime.request import Job, Request, Update
from specjax.runtime.slots import slots_of
from specjax.runtime.stop_strings import StopStrings, cut_at

if TYPE_CHECKING:
    from specjax.runtime.model import Model

MOST_SEATS = 64
"""Prompts of one call that run at once; the others take seats as they become free."""


class TextStream:
    """A generation in progress. Iterating yields the first prompt's text in pieces.

    It runs once: iterating again goes on where the last iteration stopped.

    Attributes:
        engine: what runs.
        jobs: one for each prompt.
        observers: called with every update as it becomes known.
    """

    def __init__(
        self,
        model: Model,
        prompts: Sequence[Sequence[int]],
        options: Sequence[GenerateOptions],
        *,
        live: bool = True,
    ) -> None:
        """
        Args:
            model: what generates.
            prompts: token ids. A prompt's random stream is named by its index.
            options: of each prompt.
            live: whether somebody reads texts as they come.

        Raises:
            PromptError: a prompt cannot be continued.
            SpecjaxError: see `Model.decoder`.
        """
        check_prompts(model.target, prompts)
        requests = [
            model.request(prompt, each, sequence=index)
            for index, (prompt, each) in enumerate(zip(prompts, options, strict=True))
        ]
        self.engine, self.jobs = started(model, requests, options)
        self.observers: list[Callable[[Update], None]] = []
        self._model = model
        self._options = options
        # Generators that do not hold the stream: an abandoned one is given up at once, with the state that it runs.
        self._updates = _observed(self.engine.run(live=live), self.observers)
        self._pieces = _pieces(self._updates, self.jobs[0], model.watch(options[0].stop))

    def updates(self) -> Iterator[Update]:
        """What becomes known of all prompts."""
        return self._updates

    def __iter__(self) -> Iterator[str]:
        return self._pieces

    @property
    def result(self) -> Generation:
        """The generation, once the stream is exhausted."""
        return self.results()[0]

    def results(self) -> list[Generation]:
        """One generation per prompt, once everything has run.

        Raises:
            SpecjaxError: the stream has not been iterated to its end.
        """
        if not self.engine.idle:
            raise SpecjaxError("the stream is not exhausted yet; iterate over it before asking for its result")
        return [generation_of(self._model, job, each) for job, each in zip(self.jobs, self._options, strict=True)]


def started(model: Model, requests: Sequence[Request], options: Sequence[GenerateOptions]) -> tuple[Engine, list[Job]]:
    """The engine of a call, with its requests in the queue. Prompts that start alike are computed once."""
    shared = DEFAULT_PREFIX_BYTES if worth_sharing([request.prompt for request in requests]) else 0
    seats, slots = min(len(requests), MOST_SEATS), slots_of(requests, model.target)
    engine = model.engine(options, seats=seats, slots=slots, prefix_bytes=shared)
    return engine, [engine.submit(request) for request in requests]


def _observed(updates: Iterator[Update], observers: Sequence[Callable[[Update], None]]) -> Iterator[Update]:
    for update in updates:
        for observe in observers:
            observe(update)
        yield update


def _pieces(updates: Iterator[Update], job: Job, text: StopStrings | None) -> Iterator[str]:
    if text is None:
        return
    for update in updates:
        if update.job is job:
            text.push(update.tokens)
            if piece := text.shown():
                yield piece
    if rest := text.rest():
        yield rest


def generation_of(model: Model, job: Job, options: GenerateOptions) -> Generation:
    """The result of a job that has finished: its text, its figures, and its trace if the options have `trace=True`.

    Args:
        model: the model of the engine.
        job: what `Engine.submit` returned.
        options: those that its request was made with.

    Raises:
        SpecjaxError: it has not finished.

    Warns:
        NonFiniteWarning: the model's logits were not finite numbers.
    """
    if job.finish_reason is None:
        raise SpecjaxError("the job has not finished; run the engine until `job.finish_reason` is there, or cancel it")
    if not job.finite:
        warnings.warn(NonFiniteWarning(model.path), stacklevel=2)
    return Generation(
        text=cut_at(model.decode(job.tokens), options.stop),
        tokens=job.tokens,
        prompt_tokens=list(job.request.prompt),
        finish_reason=job.finish_reason,
        stats=job.stats,
        timings=job.timings,
        margins=job.margins if options.margins else None,
        logprobs=job.logprobs if options.logprobs is not None else None,
        trace=trace_of(job, options.plain(), model.decode_bytes) if options.trace and job.tokens else None,
    )
