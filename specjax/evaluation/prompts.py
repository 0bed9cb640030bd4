"""Prompt files: one JSON object a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specjax.errors import PromptError

KEYS = ("id", "prompt", "tokens", "max_tokens")


@dataclass(frozen=True)
class PromptLine:
    """One line of a prompt file.

    Attributes:
        index: its number among the prompts, which names its random stream.
        id: its name, unique in the file; the index unless the line names one.
        prompt: text, or token ids.
        max_tokens: tokens to generate at most, None for the run's own limit.
        place: "file:line", for messages.
    """

    index: int
    id: str | int
    prompt: str | list[int]
    max_tokens: int | None
    place: str


def read_prompts(path: str | Path) -> list[PromptLine]:
    """The prompts of a file, see `parse_prompts`.

    Raises:
        OSError: the file cannot be read.
        PromptError: it is no prompt file.
    """
    return parse_prompts(Path(path).read_bytes(), str(path))


def parse_prompts(data: bytes, name: str) -> list[PromptLine]:
    """Prompts from lines of {"prompt": text | "tokens": ids, "id"?, "max_tokens"?}; empty lines are passed over.

    Args:
        data: the lines, in UTF-8.
        name: where they come from, for messages.

    Raises:
        PromptError: a line is not such an object, an id occurs twice, or there are no prompts.
    """
    prompts: list[PromptLine] = []
    places: dict[str | int, str] = {}
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise PromptError(f"{name} is not UTF-8 text: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        prompt = _parse(line, len(prompts), f"{name}:{number}")
        if prompt.id in places:
            raise PromptError(f"{prompt.place}: the id {prompt.id!r} occurs before, at {places[prompt.id]}")
        places[prompt.id] = prompt.place
        prompts.append(prompt)
    if not prompts:
        raise PromptError(f'{name} has no prompts; give one JSON object a line, such as {{"prompt": "def f("}}')
    return prompts


def _parse(line: str, index: int, place: str) -> PromptLine:
    def require(condition: bool, message: str) -> None:
        if not condition:
            raise PromptError(f"{place}: {message}")

    try:
        entry: Any = json.loads(line)
    except ValueError as error:
        raise PromptError(f"{place} is not JSON: {error}") from error
    require(isinstance(entry, dict), 'each line must be an object such as {"prompt": "def f("}')
    unknown = sorted(entry.keys() - set(KEYS))
    require(not unknown, f"unknown keys {unknown}; known are {', '.join(KEYS)}")
    require(("prompt" in entry) != ("tokens" in entry), 'give either "prompt" or "tokens"')
    name, max_tokens = entry.get("id", index), entry.get("max_tokens")
    require(type(name) in (str, int), f"id is {name!r}; give a text or a number")
    require(max_tokens is None or (type(max_tokens) is int and max_tokens > 0), f"max_tokens is {max_tokens!r}")
    text, tokens = entry.get("prompt"), entry.get("tokens")
    if "prompt" in entry:
        require(isinstance(text, str), f"prompt is {text!r}; give a text, or ids as tokens")
        return PromptLine(index, name, text, max_tokens, place)
    require(isinstance(tokens, list) and all(type(token) is int for token in tokens), "tokens must be a list of ids")
    return PromptLine(index, name, tokens, max_tokens, place)
