"""Which number of drafts to use: what rounds cost on this machine, times how many drafts the model accepts.

A round with K drafts takes t_draft(K) + t_verify(K + 1) and emits tau(K) tokens in each row. The times are measured
for each batch and context length. tau comes from one trace with the most drafts, by `Trace.what_if`. So acceptance is
measured once, and costs without it. The shares of acceptance and of the host are not in the times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax.numpy as jnp

from specjax.analysis.profiling import RoundCost, round_cost
from specjax.decoding.new_state import idle_state
from specjax.decoding.settings import DraftConfig, Settings
from specjax.errors import SpecjaxError
from specjax.runtime.engine import slots_for
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.runtime.prompts import Prompt
from specjax.traces.replay import WhatIf
from specjax.traces.trace import Trace

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

DRAFTS = (1, 2, 3, 5, 8)
BATCHES = (1, 4, 16)
CONTEXTS = (512,)
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
    """

    batch: int
    context: int
    k: int
    cost: RoundCost
    tokens_per_round: float
    error: float
    speedup: float
    break_even: float | None

    @property
    def tokens_per_second(self) -> float:
        """The speed of all rows together."""
        return self.batch * self.tokens_per_round / self.cost.total


@dataclass(frozen=True)
class Plan:
    """Forecasts for batches, context lengths and numbers of drafts.

    >>> plan = specjax.plan(model, prompts)
    >>> model.generate(prompt, draft=plan.draft)

    Attributes:
        forecasts: one for each of them; 0 drafts are plain decoding.
        trace: from which acceptance was read.
    """

    forecasts: tuple[Forecast, ...]
    trace: Trace

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
        """The best choice for the first batch and context, for `generate(..., draft=plan.draft)`."""
        return DraftConfig(n_max=self.best(self.forecasts[0].batch).k)

    def advice(self) -> Iterator[str]:
        """A sentence for each batch and context."""
        for batch, context in dict.fromkeys((each.batch, each.context) for each in self.forecasts):
            best = self.best(batch, context)
            where = f"Batch {batch}, context {context}"
            if best.k == 0:
                yield f"{where}: decode plainly; no number of drafts is faster on these texts."
                continue
            even = "any acceptance" if best.break_even == 0 else f"an acceptance of {best.break_even:.2f}"
            yield (
                f"{where}: draft {best.k}; {best.speedup:.2f} times as fast as plain decoding."
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
        """The speed-up and the time of a round by the number of drafts, a line for each batch and context."""
        from matplotlib import pyplot

        figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
        for batch, context in dict.fromkeys((each.batch, each.context) for each in self.forecasts):
            own = [each for each in self.forecasts if (each.batch, each.context) == (batch, context)]
            ks, label = [each.k for each in own], f"batch {batch}, context {context}"
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
    trace: Trace | None = None,
    drafts: Sequence[int] | None = None,
    batches: Sequence[int] = BATCHES,
    contexts: Sequence[int] = CONTEXTS,
    options: GenerateOptions | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Plan:
    """Measure what rounds cost and how many drafts are accepted, and say which number of drafts to use.

    Args:
        model: with its drafter.
        prompts: texts like those to come.
        trace: of such texts, recorded with as many drafts as the most; then no prompts are needed.
        drafts: the numbers of drafts to choose from; plain decoding always is one. None for those of `DRAFTS` that the
            drafter can make.
        batches, contexts: for which costs are measured. Each combination compiles programs of its own.
        options: how the prompts are continued; `draft` and `trace` are passed over. Default: greedy, 128 tokens.
        progress: called with steps done and steps in all.

    Raises:
        SpecjaxError: the model has no drafter.
        ValueError: a number is out of its range; there are neither prompts nor a trace; or the trace was recorded with
            fewer drafts.
    """
    if model.drafter is None:
        raise SpecjaxError(
            f"{model.path} has no drafter, so there is nothing to plan; load it with drafter='ngram', say"
        )
    if drafts is None:
        most = model.drafter.max_drafts
        drafts = [k for k in DRAFTS if most is None or k <= most]
    numbers = sorted({0, *drafts})
    if numbers[0] < 0 or len(numbers) < 2 or min(*batches, *contexts) < 1:
        raise ValueError(
            f"drafts are {list(drafts)}, batches {list(batches)} and contexts {list(contexts)}; give numbers that are"
            " at least 1"
        )
    if trace is None and not prompts:
        raise ValueError("there are no prompts; give texts like those to come, or trace=")
    options = GenerateOptions(max_tokens=TOKENS, ignore_eos=True) if options is None else options
    places = [(batch, context, k) for batch in batches for context in contexts for k in numbers]
    total = 1 + TURNS * len(places)
    trace = _recorded(model, prompts, options, numbers[-1]) if trace is None else trace
    told = {k: trace.what_if(k) for k in numbers}
    progress(1, total)
    measured: dict[tuple[int, int, int], list[RoundCost]] = {place: [] for place in places}
    for turn in range(TURNS):
        for index, place in enumerate(places):
            measured[place].append(_cost(model, options, *place))
            progress(2 + turn * len(places) + index, total)
    costs = {place: _median(each) for place, each in measured.items()}
    return Plan(tuple(_forecast(costs, told[place[2]], place) for place in places), trace)


def _recorded(model: Model, prompts: Sequence[Prompt], options: GenerateOptions, depth: int) -> Trace:
    """A trace of the prompts with so many drafts."""
    generations = model.generate_batch(prompts, replace(options, draft=depth, trace=True))
    return Trace.join([each.trace for each in generations if each.trace is not None])


def _cost(model: Model, options: GenerateOptions, batch: int, context: int, k: int) -> RoundCost:
    """The halves of a round at a length of the texts."""
    decoder = model.decoder(replace(options, draft=k, trace=False))
    settings = decoder.settings([Settings(options.sampler, DraftConfig(n_max=k))] * batch)
    state = idle_state(decoder, settings, slots_for(context + 2 * decoder.rows))
    length = jnp.full((batch,), context, jnp.int32)
    return round_cost(decoder, model.params, replace(state, sequences=replace(state.sequences, length=length)))


def _median(costs: Sequence[RoundCost]) -> RoundCost:
    return RoundCost(statistics.median(each.draft for each in costs), statistics.median(each.verify for each in costs))


def _forecast(costs: dict[tuple[int, int, int], RoundCost], told: WhatIf, place: tuple[int, int, int]) -> Forecast:
    batch, context, k = place
    ratio = costs[place].total / costs[batch, context, 0].total
    return Forecast(
        batch=batch,
        context=context,
        k=k,
        cost=costs[place],
        tokens_per_round=told.tokens_per_round,
        error=told.tokens_per_round_error,
        speedup=told.tokens_per_round / ratio,
        break_even=break_even(k, ratio),
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
