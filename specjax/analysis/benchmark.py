"""How fast a model decodes, with and without drafts, compared with what the parts of a round allow."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from specjax.analysis.profiling import RoundCost, round_cost, speedup_bound
from specjax.decoding.acceptance import Synthetic
from specjax.decoding.stats import DecodeStats
from specjax.runtime.building import Experience
from specjax.runtime.engine import Engine
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prompts import check_prompts
from specjax.runtime.request import Job
from specjax.runtime.slots import slots_of

TURNS = 5
FINDING_RUNS = 3
"""Runs before the timed ones in which the number of drafts is found."""


@dataclass(frozen=True)
class Speed:
    """Rounds of one number of drafts at batch 1, all prompts together. Medians of several turns.

    Attributes:
        n_drafts: K; 0 is plain decoding, "auto" what was found while decoding.
        stats: counts of the rounds.
        tokens_per_second: emitted tokens over the seconds of all rounds, prefill and compilation left out.
        round_seconds: of a whole round, the host's share included.
        speedup: tokens per second over those of plain decoding in the same turn.
        cost: the halves of a round, timed as programs of their own; None where rounds differ.
        bound: the speed-up that the halves allow at these tokens per round, see
            `specjax.analysis.profiling.speedup_bound`; None without a cost.
        expected_tokens_per_round: what the given probabilities come to; None where acceptance is the model's own. The
            last rounds of `max_tokens` have room for fewer drafts, and stay below it.
    """

    n_drafts: int | Literal["auto"]
    stats: DecodeStats
    tokens_per_second: float
    round_seconds: float
    speedup: float
    cost: RoundCost | None
    bound: float | None
    expected_tokens_per_round: float | None = None

    def as_document(self) -> dict[str, Any]:
        """Plain data; times in seconds."""
        return {
            "draft": self.n_drafts,
            "tokens_per_second": self.tokens_per_second,
            "tokens_per_round": self.stats.tokens_per_round,
            "expected_tokens_per_round": self.expected_tokens_per_round,
            "acceptance_by_position": self.stats.acceptance_by_position,
            "round": self.round_seconds,
            "rounds_by_drafts": self.stats.rounds_by_drafts,
            "drafted_by_drafter": self.stats.drafted_by_drafter,
            "accepted_by_drafter": self.stats.accepted_by_drafter,
            "draft_per_round": self.cost and self.cost.draft,
            "verify_per_round": self.cost and self.cost.verify,
            "speedup": self.speedup,
            "bound": self.bound,
        }


@dataclass
class _Runs:
    """What one number of drafts has shown so far."""

    options: GenerateOptions
    stats: DecodeStats = field(default_factory=DecodeStats)
    cost: RoundCost | None = None
    seconds: list[float] = field(default_factory=list)


def measure_speed(
    model: Model,
    prompts: Sequence[Sequence[int]],
    options: Sequence[GenerateOptions],
    *,
    synthetic: Synthetic | None = None,
    turns: int = TURNS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Speed]:
    """Decode the prompts one after the other with all `options`, in turns, because the speed of machines drifts.

    Args:
        model: what decodes.
        prompts: token ids.
        options: they differ in `draft`; the first is plain decoding, which the others are compared with.
        synthetic: accept with these probabilities instead of by the model's agreement. Not lossless: the tokens are
            thrown away.
        turns: times that all options run.
        progress: called with steps done and steps in all.

    Raises:
        ValueError: the first options draft; there are no prompts, turns or rounds, or fewer probabilities than drafts.
        PromptError, SpecjaxError: see `Model.generate`.
    """
    model = replace(model, _experience=Experience())  # what is learnt here is not for the caller
    model._experience.effort.rounds = math.inf  # building counts for nothing
    runs = [_Runs(each) for each in options]
    longest = max(range(len(prompts)), key=lambda index: len(prompts[index]), default=0)
    if not prompts or turns < 1:
        raise ValueError(f"there are {len(prompts)} prompts and {turns} turns; at least one of each is needed")
    if model.decoder(options[0]).drafts:
        raise ValueError("the first options must be those of plain decoding, draft=0")
    for run in runs:  # wrong settings are to be seen before the work
        list(_engines(model, prompts, run.options, synthetic))
    total = len(runs) * (1 + turns)
    for number, run in enumerate(runs):
        for _ in range(FINDING_RUNS if run.options.finds_depth else 0):
            for engine, job in _engines(model, prompts, run.options, synthetic):
                _seconds(engine, job)
        for index, (engine, _) in enumerate(_engines(model, prompts, run.options, synthetic)):
            for update in engine.run():  # the first run compiles
                if update.record is not None:
                    run.stats.add(update.record, update.row)
            if index == longest and not run.options.finds_depth:
                run.cost = round_cost(engine.decoder, model.params, engine.state)
        if not run.stats.rounds:
            raise ValueError(
                "every text ends with its first token, before any round; give other prompts or more tokens"
            )
        progress(number + 1, total)
    for turn in range(turns):
        for number, run in enumerate(runs):
            run.seconds.append(sum(map(_seconds, *zip(*_engines(model, prompts, run.options, synthetic), strict=True))))
            progress(len(runs) * (1 + turn) + number + 1, total)
    return [_speed(model, run, runs[0], synthetic) for run in runs]


def random_prompt(vocab_size: int, length: int, seed: int) -> list[int]:
    """Token ids drawn uniformly, for models whose text means nothing."""
    return np.random.default_rng(seed).integers(0, vocab_size, length).tolist()


def _engines(
    model: Model, prompts: Sequence[Sequence[int]], options: GenerateOptions, synthetic: Synthetic | None
) -> Iterator[tuple[Engine, Job]]:
    """An engine for each prompt, with the prompt in it."""
    for index, prompt in enumerate(prompts):
        check_prompts(model.target, [prompt])
        request = model.request(prompt, options, sequence=index)
        engine = model.engine([options], seats=1, slots=slots_of([request], model.target))
        if synthetic is not None:
            engine.decoder = replace(engine.decoder, rule=synthetic)
        yield engine, engine.submit(request)


def _seconds(engine: Engine, job: Job) -> float:
    for _ in engine.run():
        pass
    return job.timings.decode


def _speed(model: Model, run: _Runs, plain: _Runs, synthetic: Synthetic | None) -> Speed:
    assert plain.cost is not None
    rates = [run.stats.tokens / seconds for seconds in run.seconds]
    plain_rates = [plain.stats.tokens / seconds for seconds in plain.seconds]
    n_drafts = model.decoder(run.options).max_drafts
    return Speed(
        n_drafts="auto" if run.options.finds_depth else n_drafts,
        stats=run.stats,
        tokens_per_second=statistics.median(rates),
        round_seconds=statistics.median(run.seconds) / run.stats.rounds,
        speedup=statistics.median(rate / base for rate, base in zip(rates, plain_rates, strict=True)),
        cost=run.cost,
        bound=speedup_bound(run.stats.tokens_per_round, plain.cost, run.cost) if run.cost else None,
        expected_tokens_per_round=synthetic.tokens_per_round(n_drafts) if synthetic and run.cost else None,
    )
