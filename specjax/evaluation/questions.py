"""Questions with several choices: read from files, answered by log-probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from specjax.errors import PromptError
from specjax.evaluation.lines import lines_of, object_of
from specjax.runtime.model import Model
from specjax.runtime.prompts import check_prompts
from specjax.runtime.scoring import Score, score

KEYS = ("id", "prompt", "choices", "answer")
RESULT_KEYS = ("best", "best_per_byte", "totals", "per_byte", "shares", "greedy", "logprobs", "tokens")
"""Those of a result line that no line of questions has."""
EXAMPLE = '{"prompt": "1 + 1 =", "choices": [" 2", " 3"]}'


@dataclass(frozen=True)
class Question:
    """A prompt and texts that may follow it.

    Attributes:
        id: its name; its number unless the line names one.
        prompt: what the choices continue.
        choices: at least one, none empty.
        answer: the number of the right choice, if it is known.
        place: "file:line", for messages.
        others: what else stands in the line, for its result.
    """

    id: str | int
    prompt: str
    choices: tuple[str, ...]
    answer: int | None
    place: str
    others: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Answered:
    """A question and what the model finds.

    Attributes:
        question: what was asked.
        tokens: the token ids of each choice.
        scores: of each choice.
    """

    question: Question
    tokens: tuple[tuple[int, ...], ...]
    scores: tuple[Score, ...]

    @property
    def totals(self) -> list[float]:
        """The log-probability of each choice."""
        return [score.total for score in self.scores]

    @property
    def per_byte(self) -> list[float]:
        """The same divided by the bytes of each."""
        sizes = (len(choice.encode()) for choice in self.question.choices)
        return [total / size for total, size in zip(self.totals, sizes, strict=True)]

    @property
    def shares(self) -> list[float]:
        """The probability of each choice if it must be one of them."""
        return np.exp(np.array(self.totals) - np.logaddexp.reduce(self.totals)).tolist()

    @property
    def best(self) -> int:
        """The number of the most probable choice."""
        return int(np.argmax(self.totals))

    @property
    def best_per_byte(self) -> int:
        """The number of the choice with the highest log-probability per byte."""
        return int(np.argmax(self.per_byte))

    def as_line(self) -> dict[str, Any]:
        """Plain data: the question's other keys, and what was found."""
        found = {
            "id": self.question.id,
            "prompt": self.question.prompt,
            "choices": list(self.question.choices),
            "answer": self.question.answer,
            "best": self.best,
            "best_per_byte": self.best_per_byte,
            "totals": self.totals,
            "per_byte": self.per_byte,
            "shares": self.shares,
            "greedy": [score.greedy for score in self.scores],
            "logprobs": [list(score.logprobs) for score in self.scores],
            "tokens": [list(tokens) for tokens in self.tokens],
        }
        return {**self.question.others, **found}


def accuracy(answered: Iterable[Answered]) -> dict[str, float]:
    """The share of questions with an answer whose best choice is the right one; empty if none has an answer."""
    known = [each for each in answered if each.question.answer is not None]
    if not known:
        return {}
    right = [(each.best == each.question.answer, each.best_per_byte == each.question.answer) for each in known]
    by_total, by_byte = np.mean(right, axis=0).tolist()
    return {"questions": len(known), "accuracy": by_total, "accuracy_per_byte": by_byte}


def answer(model: Model, questions: Sequence[Question]) -> list[Answered]:
    """Score all choices of all questions; they run together.

    Raises:
        PromptError: a text is no Unicode text, or does not fit the model's context; the message says where it is.
        SpecjaxError: the model has no tokenizer.
    """
    prompts, choices = [], []
    for question in questions:
        try:
            prompt = model.encode(question.prompt)
            check_prompts(model.target, [prompt], new_tokens=0)
            own = [model.encode_further(choice) for choice in question.choices]
            check_prompts(model.target, [[*prompt, *choice] for choice in own], new_tokens=-1)
        except PromptError as error:
            raise PromptError(f"{question.place}: {error}") from error
        prompts += [prompt] * len(own)
        choices += own
    found = zip(choices, score(model, prompts, choices), strict=True)
    answered = []
    for question in questions:
        tokens, scores = zip(*islice(found, len(question.choices)), strict=True)
        answered.append(Answered(question, tuple(map(tuple, tokens)), scores))
    return answered


def read_questions(path: Path) -> list[Question]:
    """Questions from lines of {"prompt": text, "choices": [text, ...], "answer"?: number, "id"?, ...}.

    Raises:
        OSError: the file cannot be read.
        PromptError: a line is no such object, an id occurs twice, or there are no questions.
    """
    questions = [_parse(*line, index) for index, line in enumerate(lines_of(path.read_bytes(), str(path)))]
    if not questions:
        raise PromptError(f"{path} has no questions; give one JSON object a line, such as {EXAMPLE}")
    places: dict[str | int, str] = {}
    for each in questions:
        if (before := places.setdefault(each.id, each.place)) != each.place:
            raise PromptError(f"{each.place}: the id {each.id!r} occurs before, at {before}")
    return questions


def _parse(line: str, place: str, index: int) -> Question:
    entry = object_of(line, place, EXAMPLE)
    name, prompt, choices, right = entry.get("id", index), *map(entry.get, ("prompt", "choices", "answer"))
    if type(name) not in (str, int):
        raise PromptError(f"{place}: id is {name!r}; give a text or a number")
    if not isinstance(prompt, str) or not prompt:
        raise PromptError(f"{place}: prompt is {prompt!r}; give a text that is not empty")
    if not isinstance(choices, list) or not choices or not all(isinstance(each, str) and each for each in choices):
        raise PromptError(f"{place}: choices are {choices!r}; give a list of texts, none empty")
    if right is not None and (type(right) is not int or not 0 <= right < len(choices)):
        raise PromptError(f"{place}: answer is {right!r}; give the number of the right choice, 0 to {len(choices) - 1}")
    if taken := [key for key in entry if key in RESULT_KEYS]:
        raise PromptError(f"{place}: a result has a {taken[0]!r} of its own; give that key another name")
    others = {key: value for key, value in entry.items() if key not in KEYS}
    return Question(name, prompt, tuple(choices), right, place, others)
