"""Speculative against plain decoding of one prompt: the same tokens? how much faster?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specjax.analysis.divergence import Divergence, find_divergence
from specjax.analysis.profiling import RoundCost, round_cost, speedup_bound
from specjax.decoding.acceptance import draws_drafts
from specjax.runtime.generation import Generation
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions

LEAST_SECONDS = 0.3
"""What takes less is mostly the system's doing: such speed-ups change from run to run by their own size."""
MOST_TURNS = 10
"""Short decodings are run again, in turns, so often at most."""


@dataclass(frozen=True)
class Comparison:
    """What plain decoding did, and how the two differ.

    Attributes:
        plain: the generation without drafts.
        comparable: whether the tokens had to be equal; rejection and block verification keep only the distribution.
        divergence: the first difference, None if there is none or if `comparable` does not hold.
        speedup: tokens per second over those of plain decoding, in all turns.
        bound: what the measured cost of a round allows at these tokens per round; None if it was not measured.
        plain_cost: of one round of plain decoding, if measured.
        seconds: that the faster of the two took, in all turns.
        turns: how often each ran.
    """

    plain: Generation
    comparable: bool
    divergence: Divergence | None
    speedup: float
    bound: float | None
    plain_cost: RoundCost | None
    seconds: float
    turns: int = 1

    @property
    def measurable(self) -> bool:
        """Whether both decodings took long enough to tell their speeds."""
        return self.seconds >= LEAST_SECONDS

    @property
    def failed(self) -> bool:
        """Whether the tokens differ where they must not."""
        return self.divergence is not None and not self.divergence.near_tie


def compare(
    model: Model, prompt: str | Sequence[int], options: GenerateOptions, drafted: Generation, cost: RoundCost | None
) -> Comparison:
    """Decode `prompt` again with K = 0, and both several times if they are short.

    The cost of plain rounds is measured if `cost`, that of drafted ones, is.
    """
    stream = model.stream(prompt, replace(options, draft=0))
    for _ in stream.updates():
        pass
    plain = stream.result
    comparable = not draws_drafts(options.rule)
    divergence = None
    if comparable:
        divergence = find_divergence(model, plain.prompt_tokens, options, drafted.tokens, plain.tokens)
    plain_cost = bound = None
    if cost is not None:
        plain_cost = round_cost(stream.engine.decoder, model.params, stream.engine.state)
        bound = speedup_bound(drafted.stats.tokens_per_round, plain_cost, cost)
    speedup, seconds, turns = _measure(model, drafted, plain, options)
    return Comparison(plain, comparable, divergence, speedup, bound, plain_cost, seconds, turns)


def _measure(
    model: Model, drafted: Generation, plain: Generation, options: GenerateOptions
) -> tuple[float, float, int]:
    """The speed-up, the seconds of the faster one, and the turns: both run again until that is long enough."""
    seconds = [drafted.timings.decode, plain.timings.decode]
    tokens = [drafted.stats.tokens, plain.stats.tokens]
    turns = 1
    while min(seconds) < LEAST_SECONDS and turns < MOST_TURNS and all(tokens):
        for index, chosen in enumerate((options, replace(options, draft=0))):
            again = model.generate(plain.prompt_tokens, chosen)
            seconds[index] += again.timings.decode
            tokens[index] += again.stats.tokens
        turns += 1
    speedup = tokens[0] * seconds[1] / (tokens[1] * seconds[0]) if all(tokens) else float("nan")
    return speedup, min(seconds), turns
