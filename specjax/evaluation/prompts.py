"""Prompt files: one JSON object a line."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specjax.errors import PromptError
from specjax.runtime.options import PER_REQUEST, options_of

KEYS = ("id", "prompt", "tokens", *PER_REQUEST)
RESULT_KEYS = (
    *("index", "text", "finish_reason", "prompt_tokens", "rounds", "drafted", "accepted", "error"),
    *("drafted_by_position", "accepted_by_position", "logprobs", "top_logprobs"),
)
"""Those of a result line that no line of prompts has."""
_ALIKE = 0.85
"""From this likeness on (see `difflib`), an unknown key is taken for a known one that is mistyped."""


@dataclass(frozen=True)
class PromptLine:
    """One line of a prompt file.

    Attributes:
        index: its number among the prompts, which names its random stream.
        id: its name, unique in the file; the index unless the line names one.
        prompt: text, or token ids.
        options: fields of `GenerateOptions` that are its own; the run's options hold for the others.
        place: "file:line", for messages.
        others: what else stands in the line, for its result.
    """

    index: int
    id: str | int
    prompt: str | list[int]
    options: Mapping[str, Any]
    place: str
    others: Mapping[str, Any] = field(default_factory=dict)


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

    def as_line(self) -> dict[str, Any]:
        """Its line in the result file."""
        return {**self.others, "id": self.id, "index": self.index, "error": self.error}


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
    index = 0
    try:
        lines = data.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _parse(line, index, f"{name}:{number}")
            if prompt.id in places:
                raise PromptError(f"{prompt.place}: the id {prompt.id!r} occurs before, at {places[prompt.id]}")
            places[prompt.id] = prompt.place
            prompts.append(prompt)
        except PromptError as error:
            if bad is None:
                raise
            bad.append(BadPrompt(index, f"line {number}", str(error)))
        index += 1
    if not prompts and not bad:
        raise PromptError(f'{name} has no prompts; give one JSON object a line, such as {{"prompt": "def f("}}')
    return prompts


def _parse(line: str, index: int, place: str) -> PromptLine:
    def require(condition: bool, message: str) -> None:
        if not condition:
            raise PromptError(f"{place}: {message}")

    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise PromptError(f"{place} is not JSON: {error}") from error
    require(isinstance(entry, dict), 'each line must be an object such as {"prompt": "def f("}')
    others = {key: value for key, value in entry.items() if key not in KEYS}
    for key in others:
        meant = difflib.get_close_matches(key, KEYS, n=1, cutoff=_ALIKE)
        require(not meant, f"unknown key {key!r}; is {''.join(meant)!r} meant?")
        require(key not in RESULT_KEYS, f"a result has a {key!r} of its own; give that key another name")
    require(("prompt" in entry) != ("tokens" in entry), 'give either "prompt" or "tokens"')
    name = entry.get("id", index)
    require(type(name) in (str, int), f"id is {name!r}; give a text or a number")
    options = {key: value for key, value in entry.items() if key in PER_REQUEST and value is not None}
    try:
        options_of(None, options)
    except (TypeError, ValueError) as error:
        raise PromptError(f"{place}: {error}") from error
    text, tokens = entry.get("prompt"), entry.get("tokens")
    if "prompt" in entry:
        require(isinstance(text, str), f"prompt is {text!r}; give a text, or ids as tokens")
        return PromptLine(index, name, text, options, place, others)
    require(isinstance(tokens, list) and all(type(token) is int for token in tokens), "tokens must be a list of ids")
    return PromptLine(index, name, tokens, options, place, others)
