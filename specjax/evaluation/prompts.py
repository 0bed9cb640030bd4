"""Prompt files: one JSON object a line."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from specjax.errors import PromptError
from specjax.evaluation.lines import lines_of, object_of
from specjax.runtime.options import PER_REQUEST, GenerateOptions, options_of
from specjax.runtime.prompts import check_text

OF_THE_RUN = tuple(each.name for each in fields(GenerateOptions) if each.name not in PER_REQUEST)
"""Options that all prompts share."""
KEYS = ("id", "prompt", "tokens", "samples", *PER_REQUEST)
RESULT_KEYS = (
    *("index", "sample", "text", "finish_reason", "prompt_tokens", "rounds", "drafted", "accepted", "error"),
    *("drafted_by_position", "accepted_by_position", "logprobs", "top_logprobs"),
)
"""Those of a result line that no line of prompts has."""
Key = tuple[str | int, int]
"""The id of a prompt, and the number of a sample of it."""
EXAMPLE = '{"prompt": "def f("}'
_ALIKE = 0.85
"""From this likeness on (see `difflib`), an unknown key is taken for a known one that is mistyped."""


@dataclass(frozen=True)
class PromptLine:
    """One line of a prompt file.

    Attributes:
        index: its number among the prompts.
        id: its name, unique in the file; the index unless the line names one. It names its random stream.
        prompt: text, or token ids.
        options: fields of `GenerateOptions` that are its own; the run's options hold for the others.
        place: "file:line", for messages.
        others: what else stands in the line, for its result.
        samples: how many texts are to be drawn; None leaves it to the run.
        sample: which of them this is, from 0, see `samples_of`.
    """

    index: int
    id: str | int
    prompt: str | list[int]
    options: Mapping[str, Any]
    place: str
    others: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    sample: int = 0

    @property
    def key(self) -> Key:
        """Tells its result from those of others."""
        return self.id, self.sample


@dataclass(frozen=True)
class BadPrompt:
    """A line that cannot be continued.

    Attributes:
        index: see `PromptLine`.
        id: the line's own, or "line 7" where that cannot be had or is taken.
        error: what is wrong with it.
        others: see `PromptLine`.
    """

    index: int
    id: str | int
    error: str
    others: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """See `PromptLine`; all samples of a line have one error."""
        return self.id, 0

    def as_line(self) -> dict[str, Any]:
        """Its line in the result file."""
        return {**self.others, "id": self.id, "index": self.index, "error": self.error}


def samples_of(prompts: Sequence[PromptLine], options: GenerateOptions, samples: int) -> list[PromptLine]:
    """Each prompt as often as texts are to be drawn for it: sample k has the seed of the prompt plus k.

    A prompt that is decoded greedily has one text, and is there once.

    Args:
        prompts: what is continued.
        options: hold for prompts without options of their own.
        samples: texts for each prompt that does not say itself how many.

    Raises:
        ValueError: there is to be none.
    """
    if samples < 1:
        raise ValueError(f"{samples} samples are asked for; each prompt needs at least 1")
    repeated = []
    for prompt in prompts:
        greedy = prompt.options.get("temperature", options.temperature) == 0
        count = 1 if greedy else samples if prompt.samples is None else prompt.samples
        repeated += [replace(prompt, sample=sample) for sample in range(count)]
    return repeated


def read_prompts(path: str | Path) -> list[PromptLine]:
    """The prompts of a file, see `parse_prompts`.

    Raises:
        OSError: the file cannot be read.
        PromptError: it is no prompt file.
    """
    return parse_prompts(Path(path).read_bytes(), str(path))


def parse_prompts(data: bytes, name: str, bad: list[BadPrompt] | None = None) -> list[PromptLine]:
    """Prompts from lines of {"prompt": text | "tokens": ids, "id"?, ...}; empty lines are passed over.

    Fields of `GenerateOptions` that may differ between requests can be among the keys: "max_tokens", "seed", "stop".

    Args:
        data: the lines, in UTF-8; a byte order mark at their start is passed over.
        name: where they come from, for messages.
        bad: gets the lines that are no prompts; None: the first of them is an error.

    Raises:
        PromptError: a line is not such an object, an id occurs twice, or there are no prompts.
    """
    prompts: list[PromptLine] = []
    places: dict[str | int, str] = {}
    for index, (line, place) in enumerate(lines_of(data, name)):
        try:
            prompt = prompt_of(object_of(line, place, EXAMPLE), index, place)
            if prompt.id in places:
                raise PromptError(f"{prompt.place}: the id {prompt.id!r} occurs before, at {places[prompt.id]}")
            places[prompt.id] = prompt.place
            prompts.append(prompt)
        except PromptError as error:
            if bad is None:
                raise
            bad.append(BadPrompt(index, f"line {place.rpartition(':')[2]}", str(error)))
    if bad is not None:
        bad[:] = [replace(line, id=_free(str(line.id), places)) for line in bad]
    if not prompts and not bad:
        raise PromptError(f"{name} has no prompts; give one JSON object a line, such as {EXAMPLE}")
    return prompts


def _free(name: str, taken: Collection[str | int]) -> str:
    """A name that no prompt has."""
    return name if name not in taken else _free(f"{name}, bad", taken)


def prompt_of(entry: Mapping[str, Any], index: int, place: str) -> PromptLine:
    """The prompt that the keys of a line describe, see `parse_prompts`.

    Args:
        entry: the keys.
        index, place: see `PromptLine`.

    Raises:
        PromptError: it describes none.
    """

    def require(condition: bool, message: str) -> None:
        if not condition:
            raise PromptError(f"{place}: {message}")

    others = {key: value for key, value in entry.items() if key not in KEYS}
    for key in others:
        meant = difflib.get_close_matches(key, KEYS, n=1, cutoff=_ALIKE)
        require(not meant, f"unknown key {key!r}; is {''.join(meant)!r} meant?")
        require(key not in OF_THE_RUN, f"{key!r} holds for all prompts of a run; give it to the run, or rename the key")
        require(key not in RESULT_KEYS, f"a result has a {key!r} of its own; give that key another name")
    samples = entry.get("samples")
    require(samples is None or (type(samples) is int and samples > 0), f"samples is {samples!r}; give 1 or more")
    require(("prompt" in entry) != ("tokens" in entry), 'give either "prompt" or "tokens"')
    name = entry.get("id", index)
    require(type(name) in (str, int), f"id is {name!r}; give a text or a number")
    options = {key: value for key, value in entry.items() if key in PER_REQUEST and value is not None}
    try:
        check_text(str(name), "the id")
        options_of(None, options)
    except (TypeError, ValueError, PromptError) as error:
        raise PromptError(f"{place}: {error}") from error
    text: Any = entry.get("prompt")
    tokens: Any = entry.get("tokens")
    if "prompt" in entry:
        require(isinstance(text, str), f"prompt is {text!r}; give a text, or ids as tokens")
        return PromptLine(index, name, text, options, place, others, samples)
    require(isinstance(tokens, list) and all(type(token) is int for token in tokens), "tokens must be a list of ids")
    return PromptLine(index, name, tokens, options, place, others, samples)
