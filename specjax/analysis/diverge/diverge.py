"""Where two texts that should be equal part, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

from specjax.analysis.diverge.judging import Difference, is_fixed, judge
from specjax.analysis.diverge.report import DivergenceReport, Looked, Verdict
from specjax.analysis.diverge.rerun import Rerun
from specjax.analysis.diverge.sides import Side, Source, side_of
from specjax.analysis.diverge.states import GRAMMAR, check_states
from specjax.errors import SpecjaxError
from specjax.runtime.memory import common_prefix
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions, OptionChanges, options_of, takes_options
from specjax.runtime.prompts import Prompt, check_prompts


@takes_options
def diverge(
    model: Model,
    prompt: Prompt | None = None,
    a: Source | None = None,
    b: Source | None = None,
    options: GenerateOptions | None = None,
    *,
    states: bool = True,
    sequence: int = 0,
    beside: Sequence[Prompt] = (),
    **changes: Unpack[OptionChanges],
) -> DivergenceReport:
    """Compare two continuations of a prompt that should be equal; if they are not, find out why.

    >>> print(specjax.diverge(model, "def f(", {"draft": 3}, {"draft": 0}))
    >>> print(specjax.diverge(model, "def f(", {"draft": 3}, "llama_cpp.json"))

    The first difference is judged by the logits of one call over the text before it, with an empty state, without
    speculation and by the plainest kernels. The state of runs that are made here is compared, after the prompt
    and after each round, with the state of a sequence that was fed the same tokens one by one: caches, rings, recurrent
    states, and what the drafter carries. A drafter's wrong state changes no token, so this also finds what the text
    does not show.

    Args:
        model: with its drafter, see `specjax.load`.
        prompt: text or token ids; None if one of the sides comes with its prompt's tokens.
        a, b: what is compared. Each is a run that is made now, or tokens that are given. A run is a dictionary of
            settings, such as {"draft": 3, "kv_type_k": "q8_0"}, the same as a text, "draft=3,kv_type_k=q8_0", or
            `GenerateOptions`. Tokens are a list of ids, a `Generation`, or the path of a JSON file: a list of ids, or
            an object with "tokens", as `specjax generate --json` writes it. A file of that kind says how it was made,
            and is made again. None is a run with `options` for `a`, and plain decoding for `b`.
        options: what both runs have in common; its fields can be given as keywords. Of tokens whose settings are not
            known they say whether they were sampled.
        states: whether to compare states. It takes several times as long as the runs themselves.
        sequence: the random stream: a prompt's index in its batch.
        beside: the other prompts of this batch. Runs are then made beside them, with the same settings, so that a fault
            can show that needs neighbours. What prompts share at their start is computed once, as in a batch.

    Returns:
        The report. Print it, or look at `verdict`, `difference` and `sides`.

    Raises:
        SpecjaxError: there is no prompt; a file holds no tokens; or the model has no drafter and is asked for drafts.
        PromptError: see `Model.generate`.
        ValueError, TypeError: a setting is out of its range, or there is none of this name.
        OSError: a file cannot be read.
    """
    common = options_of(options, changes)
    sides = side_of(a, common, {}, "tokens A"), side_of(b, common, {"draft": 0}, "tokens B")
    prompts = [side.prompt for side in sides if side.prompt is not None]
    if prompt is not None:
        prompts.insert(0, tuple(model.encode(prompt)))
    if not prompts:
        raise SpecjaxError("there is no prompt: give one, or tokens that come with the tokens of their prompt")
    if (other := next((each for each in prompts if each != prompts[0]), None)) is not None:
        return _of_other_prompts(model, prompts[0], other, sides)
    neighbours = [model.encode(each) for each in beside]
    check_prompts(model.target, [prompts[0], *neighbours])
    runs = _Runs.of(model, prompts[0], sides, sequence, neighbours)
    equal = common_prefix(*runs.tokens)
    difference = None
    if equal < min(map(len, runs.tokens)):
        for side, own in zip(sides, runs.tokens, strict=True):
            if not 0 <= own[equal] < model.target.vocab_size:
                reason = f"{side.name} has token {own[equal]}, which is not in this model's vocabulary."
                return DivergenceReport("another model", reason, runs.looked_at(sides, equal, False), equal, None)
        difference = judge(model, prompts[0], sides, runs.tokens, equal, common, sequence)
    looked = runs.looked_at(sides, equal, states)
    verdict, reason = _verdict(model, sides, looked, runs, difference, common)
    return DivergenceReport(verdict, reason, looked, equal, difference)


NOT_OURS = "How its tokens were made is not known: give settings to have them made again."
NOT_ASKED = "That was not asked for."
NOT_REPEATED = "With its settings this model says other tokens here, so that what was recorded cannot be looked into."


@dataclass(frozen=True)
class _Runs:
    """The tokens of both sides, and the runs that made them or make them again."""

    tokens: tuple[Sequence[int], Sequence[int]]
    runs: tuple[Rerun | None, Rerun | None]

    @classmethod
    def of(
        cls,
        model: Model,
        prompt: Sequence[int],
        sides: tuple[Side, Side],
        sequence: int,
        beside: Sequence[Sequence[int]],
    ) -> _Runs:
        made = [
            None if side.options is None else Rerun(model, prompt, side.options, sequence, beside) for side in sides
        ]
        tokens = []
        for side, run in zip(sides, made, strict=True):
            if side.tokens is not None:
                tokens.append(list(side.tokens))
            else:
                assert run is not None
                tokens.append(run.tokens)
        return cls((tokens[0], tokens[1]), (made[0], made[1]))

    def repeats(self, index: int, count: int) -> bool:
        """Whether a side's tokens, as many as count, are those of its run."""
        run = self.runs[index]
        return run is not None and list(self.tokens[index][:count]) == run.tokens[:count]

    def looked_at(self, sides: tuple[Side, Side], equal: int, states: bool) -> tuple[Looked, Looked]:
        """What becomes of each side's state, if it can be looked at."""
        found = []
        for index, side in enumerate(sides):
            run, count = self.runs[index], len(self.tokens[index])
            why_not = NOT_ASKED if not states else NOT_OURS if run is None else ""
            if not why_not and not self.repeats(index, min(equal + 1, count)):
                why_not = NOT_REPEATED
            state = check_states(run) if run is not None and not why_not else None
            found.append(Looked(side.name, count, state, why_not))
        return found[0], found[1]


def _of_other_prompts(
    model: Model, here: Sequence[int], there: Sequence[int], sides: tuple[Side, Side]
) -> DivergenceReport:
    """What is said where even the prompts differ."""
    index = common_prefix(here, there)
    shown = [
        f"{each[index]} {model.decode([each[index]])!r}" if index < len(each) else "the end" for each in (here, there)
    ]
    reason = (
        f"The prompts differ: their token {index} is {shown[0]} and {shown[1]}. That is another text, template or"
        " tokenizer, or a token at the start of the text that one of the programs adds."
    )
    looked = [Looked(side.name, len(side.tokens or ()), None, "The prompts differ.") for side in sides]
    return DivergenceReport("another model", reason, (looked[0], looked[1]), 0, None)


def _verdict(
    model: Model,
    sides: tuple[Side, Side],
    looked: tuple[Looked, Looked],
    runs: _Runs,
    difference: Difference | None,
    common: GenerateOptions,
) -> tuple[Verdict, str]:
    """The verdict and its reason."""
    for letter, side in zip("AB", looked, strict=True):
        if side.state is not None and not side.state.healthy:
            return "state gone wrong", _wrong_state(letter, side, difference)
    if difference is None:
        return "equal", _lengths(runs)
    if not difference.explained:
        return _unexplained(sides, looked, runs, difference)
    each = [side.options or common for side in sides]
    alike = model.grammar(each[0]) is model.grammar(each[1]) and each[0].leaning == each[1].leaning
    if not alike and not difference.near_tie:
        return "settings", "Each side has what its own grammar, bias and penalties leave of the model's choices."
    draws = {None if own.sampler.greedy else (own.sampler, own.seed) for own in each}
    known = [side.options is not None or own.sampler.greedy for side, own in zip(sides, each, strict=True)]
    if len(draws) > 1 or not all(known) or not all(is_fixed(own, model.drafter is not None) for own in each):
        return "sampling", "Both tokens can come from these logits. They were drawn with other settings or noise."
    if difference.near_tie or each[0].kv_types == each[1].kv_types:
        return "near-tie", "The two logits tie within rounding, so that either token is right."
    here, there = difference.leads
    return (
        "settings",
        "Each side has what its own cache types make of the text: the logit of A's token minus that of B's is"
        f" {here:.3g} with the caches of A, and {there:.3g} with those of B.",
    )


def _lengths(runs: _Runs) -> str:
    count = [len(tokens) for tokens in runs.tokens]
    if count[0] == count[1]:
        return f"All {count[0]} tokens are the same."
    return f"The shorter text, of {min(count)} tokens, is the start of the other."


def _wrong_state(letter: str, side: Looked, difference: Difference | None) -> str:
    assert side.state is not None
    first = side.state.deviations[0]
    where = f"Feeding {letter}'s text" if side.state.of_feeding else f"In {letter}"
    what = f"{where}, {first.name} {'are' if first.name.endswith('s') else 'is'} wrong {first.where}"
    what += f": {first.likely}." if first.likely else "."
    if difference is None:
        return f"{what} The tokens are equal all the same."
    if first.path != GRAMMAR and side.state.first is not None and side.state.first[2] >= difference.position:
        return f"{what} That shows only after the token that differs was chosen."
    return what


def _unexplained(
    sides: tuple[Side, Side], looked: tuple[Looked, Looked], runs: _Runs, difference: Difference
) -> tuple[Verdict, str]:
    """One of the sides has what the model does not say."""
    index = next(index for index, candidate in enumerate(difference.candidates) if not candidate.explained)
    candidate, letter = difference.candidates[index], "AB"[index]
    behind = f"{candidate.shortfall:.3g} behind what this model chooses, more than rounding explains"
    if candidate.allowed is False:
        behind = "not allowed there by its grammar"
    said = f"{letter} has token {candidate.token}, which is {behind}"
    if sides[index].options is None or not runs.repeats(index, difference.index + 1):
        return (
            "another model",
            f"{said}. Its tokens do not come from this model with these settings: the weights, their types, the"
            " tokenizer or the sampler may be others, or that program is wrong.",
        )
    if looked[index].state is None:
        return "state gone wrong", f"{said}. Its state was not looked at."
    return (
        "state gone wrong",
        f"{said}. The state before is what feeding gives, so that the round itself is wrong: the logits that"
        " verification gives to its tokens, or what is accepted.",
    )
