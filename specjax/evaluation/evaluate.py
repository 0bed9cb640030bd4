"""Prompts in, one result per prompt out, in the order in which they finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specjax.errors import PromptError
from specjax.evaluation.prompts import BadPrompt, PromptLine
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
        others: what else the prompt's line has.
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
    others: Mapping[str, Any] = field(default_factory=dict)

    def as_line(self) -> dict[str, Any]:
        """Plain data, in which the other keys stand beside those of the result."""
        line = asdict(self)
        return line.pop("others") | line


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
            seed=options.seed,
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
            others=self._prompts[seat.job.sequence].others,
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
            _job(model, prompt, options)
            good.append(prompt)
        except PromptError as error:
            bad.append(BadPrompt(prompt.index, prompt.id, str(error), prompt.others))
    return good, bad


def _job(model: Model, prompt: PromptLine, options: GenerateOptions) -> Job:
    try:
        tokens = model.encode(prompt.prompt)
        check_prompts(model.target, [tokens])
    except PromptError as error:
        raise PromptError(f"{prompt.place}: {error}") from error
    return Job(prompt.index, tokens, prompt.max_tokens or options.max_tokens)
