"""Which drafter and number of drafts to use: what rounds cost on this machine, times how many drafts are accepted.

A round with K drafts takes t_draft(K) + t_verify(K + 1) and emits tau(K) tokens in each row. The times are measured
for each batch and context length. tau comes from one trace with the most drafts, by `Trace.what_if`. So acceptance is
measured once for each drafter, and costs without it. The shares of acceptance and of the host are not in the times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from types import MappingProxyType
from typing import TYPE_CHECKING

import jax.numpy as jnp

from specjax.analysis.profiling import RoundCost, round_cost
from specjax.decoding.new_state import new_state
from specjax.decoding.settings import DraftConfig, Settings
from specjax.errors import SpecjaxError
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prompts import Prompt
from specjax.runtime.slots import slots_for
from specjax.traces.replay import WhatIf
from specjax.traces.trace import Trace

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

    from specjax.runtime.model import Model

DRAFTS = (1, 2, 3, 5, 8)
BATCHES = (1, 4, 16)
CONTEXT = 512
TOKENS = 128
"""Of each text whose acceptance is measured."""

TURNS = 2
"""Times that all costs are measured; the machine's speed drifts."""


@dataclass(frozen=True)
class Forecast:
    """What a number of drafts promises.

    Attributes:
        batch: B.
        context: tokens that each row holds.
        k: drafts of a round.
        cost: seconds of a round's halves.
        tokens_per_round, error: of a row, with the standard error.
        speedup: over plain decoding of the same batch and context.
        break_even: the acceptance of every draft at which this is as fast as plain decoding; None if no acceptance
            would do.
        drafter: what drafts; empty for plain decoding.
    """

    batch: int
    context: int
    k: int
    cost: RoundCost
    tokens_per_round: float
    error: float
    speedup: float
    break_even: float | None
    drafter: str = ""

    @property
    def tokens_per_second(self) -> float:
        """The speed of all rows together."""
        return self.batch * self.tokens_per_round / self.cost.total


@dataclass(frozen=True)
class Plan:
    """Forecasts for batches, context lengths, drafters and numbers of drafts.

    >>> plan = specjax.plan(model, prompts)
    >>> model.generate(prompt, draft=plan)

    Attributes:
        forecasts: one for each of them; 0 drafts are plain decoding.
        trace: from which the acceptance of the model's own drafter was read.
        models: the model, and those that it was compared with, by the names of their drafters.
    """

    forecasts: tuple[Forecast, ...]
    trace: Trace
    models: Mapping[str, Model]

    def best(self, batch: int = 1, context: int | None = None) -> Forecast:
        """The fastest choice for a batch that was measured, and a context length (default: the first).

        Raises:
            ValueError: this batch, or this context, was not measured.
        """
        context = self.forecasts[0].context if context is None else context
        found = [each for each in self.forecasts if (each.batch, each.context) == (batch, context)]
        if not found:
            known = sorted({(each.batch, each.context) for each in self.forecasts})
            raise ValueError(f"batch {batch} with context {context} was not measured; there are {known}")
        return max(found, key=lambda each: each.tokens_per_second)

    @property
    def draft(self) -> DraftConfig:
        """The best choice for the first batch and context. `generate(..., draft=plan)` asks for it."""
        return DraftConfig(n_max=self.best(self.forecasts[0].batch).k)

    @property
    def model(self) -> Model:
        """The model with the drafter of this choice, of those that were compared; the first one for plain decoding."""
        chosen = self.best(self.forecasts[0].batch).drafter
        return self.models[chosen] if chosen else next(iter(self.models.values()))

    def advice(self) -> Iterator[str]:
        """A sentence for each batch and context."""
        for batch, context in dict.fromkeys((each.batch, each.context) for each in self.forecasts):
            best = self.best(batch, context)
            where = f"Batch {batch}, context {context}"
            if best.k == 0:
                yield f"{where}: decode plainly; no number of drafts is faster on these texts."
                continue
            by = f" by {best.drafter}" if len(self.models) > 1 else ""
            even = "any acceptance" if best.break_even == 0 else f"an acceptance of {best.break_even:.2f}"
            yield (
                f"{where}: draft {best.k}{by}; {best.speedup:.2f} times as fast as plain decoding."
                f" From {even} on it is no slower."
            )

    def to_pandas(self) -> pandas.DataFrame:
        """A table with a row for each forecast; times in seconds. Pandas must be installed."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "batch": each.batch,
                    "context": each.context,
                    "drafter": each.drafter,
                    "k": each.k,
                    "draft": each.cost.draft,
                    "verify": each.cost.verify,
                    "tokens_per_round": each.tokens_per_round,
                    "error": each.error,
                    "tokens_per_second": each.tokens_per_second,
                    "speedup": each.speedup,
                    "break_even": each.break_even,
                }
                for each in self.forecasts
            ]
        )

    def plot(self) -> Figure:
        """The speed-up and the time of a round by the number of drafts, a line for each batch, context and drafter."""
        from matplotlib import pyplot

        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        drafters = dict.fromkeys(each.drafter for each in self.forecasts if each.k)
        for batch, context, drafter in dict.fromkeys(
            (each.batch, each.context, drafter) for each in self.forecasts for drafter in drafters
        ):
            here = [each for each in self.forecasts if (each.batch, each.context) == (batch, context)]
            own = [each for each in here if not each.k or each.drafter == drafter]
            label = f"batch {batch}, context {context}" + (f", {drafter}" if len(drafters) > 1 else "")
            ks = [each.k for each in own]
            errors = [each.speedup * each.error / each.tokens_per_round for each in own]
            left.errorbar(ks, [each.speedup for each in own], yerr=errors, marker="o", label=label)
            right.plot(ks, [1e3 * each.cost.total / each.batch for each in own], marker="o", label=label)
        left.axhline(1, color="gray", linewidth=0.8)
        left.set(title="speed-up over plain decoding", xlabel="K, drafts of a round", ylabel="times", ylim=(0, None))
        right.set(title="time of a round and row", xlabel="K, drafts of a round", ylabel="ms", ylim=(0, None))
        for axes in (left, right):
            axes.grid(alpha=0.3)
            axes.legend()
        pyplot.close(figure)  # a notebook shows what the cell returns, and not this one besides
        return figure

    def __repr__(self) -> str:
        return "\n".join(self.advice())


def plan(
    model: Model,
    prompts: Sequence[Prompt] = (),
    *,
    others: Mapping[str, Model] = MappingProxyType({}),
    trace: Trace | None = None,
    drafts: Sequence[int] | None = None,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] | None = None,
    options: GenerateOptions | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Plan:
    """Measure what rounds cost and how many drafts are accepted, and say what to use: drafter and number of drafts.

    >>> others = {"ngram": specjax.load("model.gguf", drafter="ngram")}
    >>> plan = specjax.plan(model, prompts, others=others)
    >>> plan.model.generate(prompt, draft=plan)

    Args:
        model: with its drafter.
        prompts: texts like those to come.
        others: the same model with other drafters, by what these shall be called. The prompts are continued with each.
        trace: of such texts, recorded with as many drafts as the most; then no prompts are needed, but for `others`.
        drafts: the numbers of drafts to choose from; plain decoding always is one. None for those of `DRAFTS`
            that each drafter can make.
        batches, contexts: for which costs are measured. Each combination compiles programs of its own. None for a
            context of `CONTEXT` tokens, or the model's if that is shorter.
        options: how the prompts are continued; `draft` and `trace` are passed over. Default: greedy, 128 tokens.
        progress: called with steps done and steps in all.

    Raises:
        SpecjaxError: a model has no drafter.
        ValueError: a number is out of its range; there are neither prompts nor a trace; two drafters have one name; or
            the trace was recorded with fewer drafts.
    """
    for each in (model, *others.values()):
        if each.drafter is None:
            raise SpecjaxError(
                f"{each.path} has no drafter, so there is nothing to plan; load it with drafter='ngram', say"
            )
    assert model.drafter is not None
    name = " and ".join(model.drafter.keeper.class_names)
    if name in others or "" in others:
        raise ValueError(f"others are called {list(others)}, and the model's own drafter {name!r}; give other names")
    models = {name: model, **others}
    numbers = {name: _numbers(each, drafts) for name, each in models.items()}
    contexts = [min(CONTEXT, model.target.context_length)] if contexts is None else contexts
    wanted = [*numbers.values(), [*batches], [*contexts]]
    if not all(each and all(isinstance(number, Integral) and number >= 1 for number in each) for each in wanted):
        raise ValueError(
            f"drafts are {drafts}, batches {list(batches)} and contexts {list(contexts)}; give whole numbers that are"
            " at least 1"
        )
    if max(contexts) > model.target.context_length:
        raise ValueError(
            f"contexts are {list(contexts)}; the model's context is {model.target.context_length}: give lengths up to"
            " that"
        )
    if not prompts and (trace is None or others):
        raise ValueError("there are no prompts; give texts like those to come, or for the model alone trace=")
    options = GenerateOptions(max_tokens=TOKENS, ignore_eos=True) if options is None else options
    ways = [("", 0), *((name, k) for name, ks in numbers.items() for k in ks)]
    places = [(batch, context, *way) for batch in batches for context in contexts for way in ways]
    total = len(models) + TURNS * len(places)
    traces = {} if trace is None else {name: trace}
    for index, drafter in enumerate(models):
        if drafter not in traces:
            traces[drafter] = _recorded(models[drafter], prompts, options, numbers[drafter][-1])
        progress(1 + index, total)
    told = {(drafter, k): traces[drafter or name].what_if(k) for drafter, k in ways}
    measured: dict[Place, list[RoundCost]] = {place: [] for place in places}
    for turn in range(TURNS):
        for index, (batch, context, drafter, k) in enumerate(places):
            measured[batch, context, drafter, k].append(_cost(models[drafter or name], options, batch, context, k))
            progress(len(models) + turn * len(places) + index + 1, total)
    costs = {place: _median(each) for place, each in measured.items()}
    return Plan(tuple(_forecast(costs, told[place[2:]], place) for place in places), traces[name], models)


Place = tuple[int, int, str, int]
"""A batch, a context, a drafter's name and a number of drafts; plain decoding has no name."""


def _numbers(model: Model, drafts: Sequence[int] | None) -> list[int]:
    """The numbers of drafts to measure, without 0: those that were given, or those that the drafter can make."""
    assert model.drafter is not None
    most = model.drafter.max_drafts
    return sorted({*drafts} - {0}) if drafts is not None else [k for k in DRAFTS if most is None or k <= most]


def _recorded(model: Model, prompts: Sequence[Prompt], options: GenerateOptions, depth: int) -> Trace:
    """A trace of the prompts with so many drafts."""
    generations = model.generate_batch(prompts, replace(options, draft=depth, trace=True))
    return Trace.join([each.trace for each in generations if each.trace is not None])


def _cost(model: Model, options: GenerateOptions, batch: int, context: int, k: int) -> RoundCost:
    """The halves of a round at a length of the texts."""
    decoder = model.decoder(replace(options, draft=k, trace=False))
    settings = decoder.settings([Settings(options.sampler, DraftConfig(n_max=k))] * batch)
    state = new_state(decoder, model.params, settings, slots_for(context + 2 * decoder.rows))
    length = jnp.full_like(state.sequences.length, context)
    return round_cost(decoder, model.params, replace(state, sequences=replace(state.sequences, length=length)))


def _median(costs: Sequence[RoundCost]) -> RoundCost:
    return RoundCost(statistics.median(each.draft for each in costs), statistics.median(each.verify for each in costs))


def _forecast(costs: dict[Place, RoundCost], told: WhatIf, place: Place) -> Forecast:
    batch, context, drafter, k = place
    ratio = costs[place].total / costs[batch, context, "", 0].total
    return Forecast(
        batch=batch,
        context=context,
        k=k,
        cost=costs[place],
        tokens_per_round=told.tokens_per_round,
        error=told.tokens_per_round_error,
        speedup=told.tokens_per_round / ratio,
        break_even=break_even(k, ratio),
        drafter=drafter,
    )


def break_even(k: int, ratio: float) -> float | None:
    """The acceptance a of every draft for which 1 + a + ... + a^k tokens are worth rounds that cost `ratio` times as
    much as plain ones; None if none is.
    """
    if ratio <= 1:
        return 0.0
    if ratio > k + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**j for j in range(k + 1)) < ratio else (low, middle)
    return high
