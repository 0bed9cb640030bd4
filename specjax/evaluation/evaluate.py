"""Prompts in, one result per prompt out, in the order in which they finish."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from specjax.errors import PromptError
from specjax.evaluation.prompts import BadPrompt, PromptLine
from specjax.grammar.expression import GrammarError
from specjax.runtime.draft_by import UnknownDrafterError
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions, options_of
from specjax.runtime.prefixes import DEFAULT_PREFIX_BYTES, worth_sharing
from specjax.runtime.prompts import check_prompts
from specjax.runtime.request import Job, Request
from specjax.runtime.slots import slots_of
from specjax.runtime.stream import generation_of
from specjax.traces.trace import Trace


@dataclass(frozen=True)
class PromptResult:
    """The result of one prompt. Its fields are those of a result line.

    Attributes:
        id, index, sample: of the prompt, see `PromptLine`.
        seed: with which the text was drawn.
        text, tokens: the continuation, as `Generation` has it.
        finish_reason: see `Generation`.
        prompt_tokens: how many tokens the prompt has.
        rounds, drafted, accepted, drafted_by_position, accepted_by_position: see `DecodeStats`.
        logprobs, top_logprobs: of each token, and [token, log-probability] of the best at its place; None unless asked
            for.
        others: what else the prompt's line has.
        trace: what every round did, if asked for; no part of the line.
    """

    id: str | int
    index: int
    sample: int
    seed: int
    text: str
    tokens: list[int]
    finish_reason: str
    prompt_tokens: int
    rounds: int
    drafted: int
    accepted: int
    drafted_by_position: list[int]
    accepted_by_position: list[int]
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[int, float]]] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    trace: Trace | None = field(default=None, repr=False, compare=False)

    def as_line(self) -> dict[str, Any]:
        """Plain data: the other keys stand beside those of the result, and log-probabilities only if asked for."""
        line = {name: value for name, value in asdict(replace(self, trace=None)).items() if value is not None}
        return line.pop("others") | line


class Evaluation:
    """Prompts ready to be continued.

    A prompt's draws are keyed by its id and its seed, so that its result depends neither on the number of seats nor on
    which prompts are left to do.

    Attributes:
        engine: what runs; has the seconds spent on compiling.
        run_seconds, tokens: of the prompts that have finished; prefill counts, and compiling does not.
    """

    def __init__(self, model: Model, prompts: Sequence[PromptLine], options: GenerateOptions, rows: int) -> None:
        """
        Args:
            model: what continues them.
            prompts: not empty.
            options: hold for prompts without options of their own.
            rows: B, how many run together.

        Raises:
            PromptError: a prompt is empty, too long or has ids outside the vocabulary; the message says where it is.
            SpecjaxError: no MTP head, or no tokenizer for text.
            ValueError: rows is less than 1.
        """
        if rows < 1:
            raise ValueError(f"the batch has {rows} rows; it must have at least 1")
        self._model = model
        each = [_options(line, options) for line in prompts]
        requests = [_request(model, line, own) for line, own in zip(prompts, each, strict=True)]
        slots = slots_of(requests, model.target)
        shared = DEFAULT_PREFIX_BYTES if worth_sharing(request.prompt for request in requests) else 0
        self.engine = model.engine(each, seats=min(rows, len(prompts)), slots=slots, prefix_bytes=shared)
        jobs = map(self.engine.submit, requests)
        self._asked = {job: (line, own) for job, line, own in zip(jobs, prompts, each, strict=True)}
        self.run_seconds = 0.0
        self.tokens = 0

    def run(self) -> Iterator[PromptResult]:
        """Yield results as prompts finish."""
        begin = time.perf_counter()
        for update in self.engine.run():
            if update.job.finish_reason is not None:
                self.tokens += len(update.job.tokens)
                self.run_seconds = time.perf_counter() - begin - self.engine.compile_seconds
                yield self._result(update.job)

    def _result(self, job: Job) -> PromptResult:
        line, own = self._asked[job]
        generation = generation_of(self._model, job, own)
        logprobs = generation.logprobs
        return PromptResult(
            id=line.id,
            index=line.index,
            sample=line.sample,
            seed=own.seed,
            text=generation.text,
            tokens=generation.tokens,
            finish_reason=generation.finish_reason,
            prompt_tokens=len(generation.prompt_tokens),
            rounds=job.stats.rounds,
            drafted=job.stats.drafted,
            accepted=job.stats.accepted,
            drafted_by_position=job.stats.drafted_by_position,
            accepted_by_position=job.stats.accepted_by_position,
            logprobs=None if logprobs is None else [each.logprob for each in logprobs],
            top_logprobs=None if logprobs is None else [list(each.top) for each in logprobs],
            others=line.others,
            trace=generation.trace,
        )


def sift(
    model: Model, prompts: Sequence[PromptLine], options: GenerateOptions
) -> tuple[list[PromptLine], list[BadPrompt]]:
    """The prompts that the model can continue, and those that it cannot: see `Evaluation` for what is wrong with them.

    Raises:
        SpecjaxError: there is no tokenizer for text.
    """
    good, bad = [], []
    for prompt in prompts:
        try:
            _request(model, prompt, _options(prompt, options))
            good.append(prompt)
        except PromptError as error:
            if not prompt.sample:  # the others have the same error
                bad.append(BadPrompt(prompt.index, prompt.id, str(error), prompt.others))
    return good, bad


def _options(line: PromptLine, options: GenerateOptions) -> GenerateOptions:
    try:
        own = options_of(options, line.options)
        return replace(own, seed=(own.seed + line.sample) % 2**32)
    except (TypeError, ValueError) as error:
        raise PromptError(f"{line.place}: {error}") from error


def _request(model: Model, line: PromptLine, options: GenerateOptions) -> Request:
    try:
        tokens = model.encode(line.prompt)
        check_prompts(model.target, [tokens])
        return model.request(tokens, options, sequence=stream_of(line.id))
    except (PromptError, GrammarError, UnknownDrafterError) as error:
        raise PromptError(f"{line.place}: {error}") from error


def stream_of(name: str | int) -> int:
    """The random stream of a prompt: its id if that is such a number, else a checksum of it.

    So a prompt draws the same in a file of its own, in another order, or after others were taken out.
    """
    if isinstance(name, int) and 0 <= name < 2**31:
        return name
    return zlib.crc32(str(name).encode()) >> 1
