"""Prompts in, one result per prompt out, in the order in which they finish."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specjax.errors import PromptError
from specjax.evaluation.prompts import PromptLine
from specjax.evaluation.refill import Job, RefilledBatch, Seat, capacity_for
from specjax.runtime.batch import check_prompts
from specjax.runtime.generation import GenerateOptions
from specjax.runtime.model import Model


@dataclass(frozen=True)
class PromptResult:
    """What came of one prompt; the fields are those of a result line.

    Attributes:
        id, index: of the prompt, see `PromptLine`.
        text, tokens: the continuation, as `Generation` has it.
        finish_reason: "eos", "length" or "context".
        prompt_tokens: how many tokens the prompt has.
        rounds, drafted, accepted, drafted_by_position, accepted_by_position: see `DecodeStats`.
    """

    id: str | int
    index: int
    text: str
    tokens: list[int]
    finish_reason: str
    prompt_tokens: int
    rounds: int
    drafted: int
    accepted: int
    drafted_by_position: list[int]
    accepted_by_position: list[int]

    def as_line(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


class Evaluation:
    """Prompts ready to be continued.

    A prompt's draws are keyed by its index in the file, so that its result depends neither on the batch size nor on
    which prompts are left to do.

    Attributes:
        batch: what runs; has the seconds spent.
    """

    def __init__(self, model: Model, prompts: Sequence[PromptLine], options: GenerateOptions, rows: int) -> None:
        """
        Args:
            model: what continues them.
            prompts: not empty.
            options: `max_tokens` holds for prompts without their own limit.
            rows: B, how many run together.

        Raises:
            PromptError: a prompt is empty, too long or has ids outside the vocabulary; the message says where it is.
            SpecjaxError: no MTP head, or no tokenizer for text.
            ValueError: rows is less than 1.
        """
        if rows < 1:
            raise ValueError(f"the batch has {rows} rows; it must have at least 1")
        self._model = model
        self._prompts = {prompt.index: prompt for prompt in prompts}
        self._jobs = [_job(model, prompt, options) for prompt in prompts]
        decoder = model.decoder(options)
        self.batch = RefilledBatch(
            decoder=decoder,
            params=model.params,
            rows=min(rows, len(prompts)),
            capacity=capacity_for(self._jobs, decoder),
            settings=model.settings(options),
            rounds_per_chunk=options.rounds_per_chunk,
        )

    def run(self) -> Iterator[PromptResult]:
        """Yield results as prompts finish."""
        return map(self._result, self.batch.run(self._jobs))

    def _result(self, seat: Seat) -> PromptResult:
        assert seat.finish_reason is not None
        return PromptResult(
            id=self._prompts[seat.job.sequence].id,
            index=seat.job.sequence,
            text=self._model.decode(seat.tokens),
            tokens=seat.tokens,
            finish_reason=seat.finish_reason,
            prompt_tokens=len(seat.job.prompt),
            rounds=seat.stats.rounds,
            drafted=seat.stats.drafted,
            accepted=seat.stats.accepted,
            drafted_by_position=seat.stats.drafted_by_position,
            accepted_by_position=seat.stats.accepted_by_position,
        )


def _job(model: Model, prompt: PromptLine, options: GenerateOptions) -> Job:
    try:
        tokens = model.encode(prompt.prompt)
        check_prompts(model.target, [tokens])
    except PromptError as error:
        raise PromptError(f"{prompt.place}: {error}") from error
    return Job(prompt.index, tokens, prompt.max_tokens or options.max_tokens)
