"""The two things that are compared: runs of the model, or tokens that are given."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from specjax.errors import SpecjaxError
from specjax.runtime.generation import Generation
from specjax.runtime.options import GenerateOptions, options_of
from specjax.runtime.prompts import token_ids

Source = Mapping[str, Any] | GenerateOptions | Generation | Sequence[int] | str | Path
"""Settings of a run that is made now: a dictionary such as {"draft": 3}, a text such as "draft=3,kv_type_k=q8_0", or
all options. Or tokens: a `Generation`, a list of ids, or the path of a JSON file."""

OURS = ("draft", "rule", "rollback", "kv_type_k", "kv_type_v", "seed")
"""What the JSON of `specjax generate` says of how it was made; other programs do not say these all."""
SAMPLER = ("temperature", "top_k", "top_p", "min_p")
TAKEN = tuple(field.name for field in fields(GenerateOptions) if field.name not in ("stop", "rounds_per_chunk"))
"""Settings that a text can give."""


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        name: what it is called: its settings, or its file.
        tokens: those that were given; None for a run that is made now.
        prompt: the prompt's tokens, if they came with it.
        options: how this model made or makes them; None for tokens of which that is not known.
    """

    name: str
    tokens: tuple[int, ...] | None = None
    prompt: tuple[int, ...] | None = None
    options: GenerateOptions | None = None


def side_of(source: Source | None, options: GenerateOptions, default: Mapping[str, Any], name: str) -> Side:
    """What a source stands for.

    Args:
        source: see `Source`; None stands for a run with the `default` settings.
        options: what runs have in common.
        default: see `source`.
        name: what tokens are called that have no name.

    Raises:
        SpecjaxError: a file is not such a JSON file, or a text is neither a path nor settings.
        ValueError, TypeError: a setting is out of its range, or there is none of this name.
        OSError: the file cannot be read.
    """
    if source is None:
        source = default
    if isinstance(source, str | Path):
        if isinstance(source, Path) or "=" not in source:
            return _read(Path(source), options)
        source = settings_of(source)
    if isinstance(source, Mapping):
        said = ",".join(f"{key}={value}" for key, value in source.items())
        return Side(said or "as asked for", options=options_of(options, source))
    if isinstance(source, GenerateOptions):
        return Side(_changes(source), options=source)
    if isinstance(source, Generation):
        return Side(name, tuple(source.tokens), tuple(source.prompt_tokens))
    return Side(name, tuple(token_ids(source)))


def settings_of(text: str) -> dict[str, Any]:
    """The settings of a text such as "draft=3,kv_type_k=q8_0".

    Raises:
        SpecjaxError: there is no setting of a name.
    """
    found: dict[str, Any] = {}
    for pair in text.split(","):
        key, _, value = (each.strip() for each in pair.partition("="))
        if key not in TAKEN or not value:
            raise SpecjaxError(f"{pair!r} in {text!r} is no setting; give NAME=VALUE with one of {', '.join(TAKEN)}")
        try:
            found[key] = json.loads(value.lower())
        except ValueError:
            found[key] = value
    return found


def _changes(options: GenerateOptions) -> str:
    """The options that are not the usual ones."""
    usual = GenerateOptions()
    said = [field.name for field in fields(options) if getattr(options, field.name) != getattr(usual, field.name)]
    return ",".join(f"{name}={getattr(options, name)}" for name in said) or "the usual options"


def _read(path: Path, options: GenerateOptions) -> Side:
    """The tokens of a JSON file: a list of ids, or an object with "tokens" and perhaps "prompt_tokens"."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise SpecjaxError(f"{path} is not JSON: {error}") from error
    wanted = 'give a list of token ids, or {"tokens": [...], "prompt_tokens": [...]}'
    if isinstance(document, list):
        document = {"tokens": document}
    if not isinstance(document, dict) or not isinstance(document.get("tokens"), list):
        raise SpecjaxError(f"{path} holds no tokens: {wanted}, as specjax generate --json writes it")
    try:
        tokens = tuple(token_ids(document["tokens"]))
        prompt = tuple(token_ids(document["prompt_tokens"])) if "prompt_tokens" in document else None
    except ValueError as error:
        raise SpecjaxError(f"{path}: {error}; {wanted}") from error
    side = Side(path.name, tokens, prompt)
    if not tokens or not all(key in document for key in OURS):
        return side
    known = {key: document[key] for key in (*OURS, *SAMPLER) if key in document and key != "rule"}
    known |= {"temperature": 0.0} if document["rule"] == "greedy" else {"accept": document["rule"]}
    # However the text ended, so many tokens are made again.
    return replace(side, options=replace(options_of(options, known), max_tokens=len(tokens), ignore_eos=True, stop=()))
