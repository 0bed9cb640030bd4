"""From the fields of a request to the options of its texts."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specjax.decoding.settings import DraftConfig
from specjax.grammar.compile import Structure, schema_structure
from specjax.runtime.draft_by import numbers_of
from specjax.runtime.options import GenerateOptions
from specjax.serving.errors import refused
from specjax.serving.forms import Wanted

PASSED_ON = (
    *("temperature", "top_p", "top_k", "min_p", "stop", "ignore_eos", "draft_by", "accept"),
    *("presence_penalty", "frequency_penalty"),
)
"""Fields that are options by the same name."""

MOST_PENALTY, MOST_BIAS = 2.0, 100.0
MOST_STOPS, MOST_STOP_BYTES = 64, 4096
"""Strings that may end a text, and their bytes together. The engine's thread looks for them at every token."""


def options_of(
    form: Wanted,
    defaults: GenerateOptions,
    most_drafts: int,
    drafters: Sequence[str],
    max_tokens: int,
    most_tokens: int,
) -> GenerateOptions:
    """The options that a request asks for.

    Args:
        form: the request.
        defaults: what holds where it says nothing.
        most_drafts: K of the server.
        drafters: the names of those that it has.
        max_tokens: tokens to emit at most.
        most_tokens: tokens that the server allows.

    Raises:
        ApiError: an option is out of its range, or cannot be had.
    """
    changes: dict[str, Any] = {name: value for name in PASSED_ON if (value := getattr(form, name)) is not None}
    if changes.get("top_k") == -1:  # as llama.cpp and vLLM say that all tokens are kept
        changes["top_k"] = 0
    if form.seed is not None:
        changes["seed"] = form.seed % 2**32
    elif changes.get("temperature", defaults.temperature):
        changes["seed"] = secrets.randbits(32)
    _check_stops([form.stop] if isinstance(form.stop, str) else form.stop or [])
    changes |= _bias(form) | _grammar(form)
    changes["draft"] = _draft(form, defaults, most_drafts)
    if max_tokens > most_tokens:
        raise refused(f"max_tokens is {max_tokens}; this server allows at most {most_tokens}", param="max_tokens")
    changes["max_tokens"] = max(max_tokens, 1)
    try:
        options = replace(defaults, **changes)
        numbers_of(options.draft_by, drafters)
        return options
    except (ValueError, TypeError) as error:
        raise refused(str(error), param=next((name for name in changes if str(error).startswith(name)), None)) from None


def structure_of(options: GenerateOptions) -> Structure | None:
    """What texts with these options are held to; None if they may be anything.

    Raises:
        GrammarError: the schema is no JSON.
    """
    if options.regex is not None:
        return Structure("regex", options.regex, options.grammar_after)
    if options.json_schema is None:
        return None
    return schema_structure(str(options.json_schema), options.grammar_after)


def _check_stops(strings: Sequence[str]) -> None:
    num_bytes = sum(len(string.encode(errors="replace")) for string in strings)
    if len(strings) > MOST_STOPS or num_bytes > MOST_STOP_BYTES:
        raise refused(
            f"stop has {len(strings)} strings of {num_bytes} bytes together; give at most {MOST_STOPS} strings of"
            f" {MOST_STOP_BYTES} bytes together",
            param="stop",
        )


def _bias(form: Wanted) -> dict[str, Any]:
    """What is added to logits; numbers have the ranges of OpenAI's API."""
    for name in ("presence_penalty", "frequency_penalty"):
        if not -MOST_PENALTY <= (getattr(form, name) or 0) <= MOST_PENALTY:
            raise refused(f"{name} is {getattr(form, name)}; give a number from -2 to 2", param=name)
    if not form.logit_bias:
        return {}
    for token, value in form.logit_bias.items():
        if not (token.isascii() and token.isdecimal()) or not -MOST_BIAS <= value <= MOST_BIAS:
            raise refused(
                f"logit_bias adds {value} to {token!r}; give ids of tokens, and numbers from -100 to 100", "logit_bias"
            )
    return {"logit_bias": form.logit_bias}


def _grammar(form: Wanted) -> dict[str, Any]:
    """The schema of a text: OpenAI's field, or our own."""
    schema: Any = form.json_schema
    wrapped = form.response_format
    if wrapped is not None and wrapped.type != "text":
        if schema is not None or form.regex is not None:
            raise refused(
                "response_format and json_schema or regex are both given; give one of them", "response_format"
            )
        if wrapped.type == "json_object":
            schema = {"type": "object"}
        elif wrapped.json_schema is None:
            raise refused("response_format has the type json_schema, but no json_schema", "response_format.json_schema")
        else:
            schema = wrapped.json_schema.schema_
            if not isinstance(schema, dict):
                schema = {} if schema else {"enum": []}
    if (schema, form.regex, form.grammar_after) == (None, None, None):
        return {}
    return {"json_schema": schema, "regex": form.regex, "grammar_after": form.grammar_after}


def _draft(form: Wanted, defaults: GenerateOptions, most: int) -> DraftConfig:
    """How many drafts a text gets."""
    config = defaults.draft_config(most > 0, most)
    if form.draft == "auto":
        config = replace(config, n_max=most, auto=most > 0)
    elif form.draft is not None:
        if not 0 <= form.draft <= most:
            reason = f"this server drafts at most {most} tokens a round" if most else "this server drafts nothing"
            raise refused(f"draft is {form.draft}; {reason}: give 0 to {most}, or auto", param="draft")
        config = replace(config, n_max=form.draft, auto=False)
    if form.p_min is not None:
        try:
            config = replace(config, p_min=form.p_min)
        except ValueError as error:
            raise refused(str(error), param="p_min") from None
    return config
