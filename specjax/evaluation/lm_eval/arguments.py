"""What `--model_args` may say, and what a request says of how to generate."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from specjax.errors import SpecjaxError
from specjax.runtime.loading import load
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions, options_of

LOADING = ("drafter", "draft_vocab", "dtype", "packed", "place")
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names by which tasks say how many tokens to generate; the first that is given counts."""
DECIDED_BY_TASKS = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "stop", "margins", "logprobs", "trace")
"""Fields of `GenerateOptions` that tasks and `--gen_kwargs` decide, or that nobody would see."""
SAMPLING_NAMES = ("temperature", "top_k", "top_p", "min_p", "seed")


@dataclass(frozen=True)
class Limits:
    """What the harness may set beside the options of decoding.

    Attributes:
        batch_size: requests that run together; None and "auto" leave the choice to specjax.
        max_length: tokens that are fed at most; None: the model's context.
        max_gen_toks: tokens to generate for requests that do not say how many.
        prefix_token_id: what stands before a text without context; None: the token that begins a text, or else the
            one that ends it.
    """

    batch_size: int | str | None = None
    max_length: int | None = None
    max_gen_toks: int = 256
    prefix_token_id: int | None = None

    @property
    def rows(self) -> int | None:
        """How many requests run together, None if that is left open.

        Raises:
            SpecjaxError: it is no number.
        """
        if self.batch_size is None or str(self.batch_size).startswith("auto"):
            return None
        if not re.fullmatch("[1-9][0-9]*", str(self.batch_size)):
            raise SpecjaxError(f"batch_size is {self.batch_size!r}; give a number of requests, or auto")
        return int(self.batch_size)


def from_arguments(arguments: Mapping[str, Any]) -> tuple[Model, GenerateOptions, Limits]:
    """The model that `--model_args` describes, how it decodes, and what else is set.

    `pretrained` or `model` is the file, the bundled model if neither is given. The others are arguments of
    `specjax.load`, fields of `GenerateOptions` such as `draft`, and those of `Limits`. How texts are drawn is for tasks
    and `--gen_kwargs` to say.

    Raises:
        SpecjaxError: there is no such argument.
        checkpoints.CheckpointError: see `specjax.load`.
        ValueError, TypeError: an option is out of its range, or of another type.
    """
    left = {name: value for name, value in arguments.items() if value is not None}
    left.pop("device", None)  # JAX chooses
    left.pop("max_batch_size", None)
    named = [left.pop(name) for name in ("pretrained", "model") if name in left]
    loading = {name: left.pop(name) for name in LOADING if name in left}
    limits = {each.name: left.pop(each.name) for each in fields(Limits) if each.name in left}
    known = {each.name for each in fields(GenerateOptions)} - {*DECIDED_BY_TASKS}
    if unknown := [name for name in left if name not in known]:
        names = ", ".join(("pretrained", *LOADING, *(each.name for each in fields(Limits)), *sorted(known)))
        raise SpecjaxError(
            f"--model_args has {', '.join(unknown)}, which is not for specjax; known are {names}. How texts are drawn"
            " is for --gen_kwargs"
        )
    options = options_of(None, left)
    if "place" in loading:
        loading["place"] = [loading["place"]] if isinstance(loading["place"], str) else loading["place"]
    if loading.get("packed") == "off":
        loading["packed"] = None
    return load(*named[:1], **loading, need_tokenizer=True), options, Limits(**limits)


def decoding(arguments: Mapping[str, Any], options: GenerateOptions, max_tokens: int) -> GenerateOptions:
    """The options of one request for text.

    Args:
        arguments: the request's, see `LENGTH_NAMES` and `SAMPLING_NAMES`; beside them "until", strings that end the
            text, and "do_sample". False decodes greedily whatever the temperature says; True without a temperature is
            temperature 1, as in transformers.
        options: hold for what the request leaves open.
        max_tokens: how many tokens it generates if it does not say.

    Raises:
        SpecjaxError: it asks for something that specjax cannot do, such as beam search.
    """
    left = dict(arguments)
    lengths = [value for value in (left.pop(name, None) for name in LENGTH_NAMES) if value is not None]
    until = left.pop("until", None) or []
    sample, changes = left.pop("do_sample", None), {"temperature": 0.0}
    changes |= {name: left.pop(name) for name in SAMPLING_NAMES if left.get(name) is not None}
    if sample is False:
        changes["temperature"] = 0.0
    elif sample and "temperature" not in arguments:
        changes["temperature"] = 1.0
    if unusual := [f"{name}={value!r}" for name, value in left.items() if value is not None]:
        raise SpecjaxError(
            f"a request wants {', '.join(unusual)}, which specjax does not do; it knows until, do_sample,"
            f" {', '.join((*LENGTH_NAMES, *SAMPLING_NAMES))}: take the others out of the task or of --gen_kwargs"
        )
    stop = [text for text in ([until] if isinstance(until, str) else until) if text]
    return options_of(options, {**changes, "stop": stop, "max_tokens": int(lengths[0]) if lengths else max_tokens})
