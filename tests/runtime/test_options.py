"""Options as users type them: keywords, lists with one value for each prompt, and what is said of wrong ones."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np
import pytest

from specjax.decoding.settings import DraftConfig
from specjax.runtime.model import Model
from specjax.runtime.options import (
    PER_REQUEST,
    BatchOptionChanges,
    GenerateOptions,
    OptionChanges,
    options_of,
    options_of_each,
)
from specjax.sessions.session import Session

FIELDS = [each.name for each in fields(GenerateOptions)]


@pytest.mark.parametrize(
    "function", [Model.generate, Model.generate_batch, Model.stream, Model.session, Session.generate]
)
def test_editors_see_every_option_as_a_keyword(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert set(FIELDS) <= set(parameters)
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in FIELDS)


def test_type_checkers_see_the_same_options() -> None:
    assert list(get_type_hints(OptionChanges)) == list(get_type_hints(BatchOptionChanges)) == FIELDS
    ours, hints = get_type_hints(OptionChanges), get_type_hints(GenerateOptions)
    assert {name: ours[name] for name in FIELDS} == {name: hints[name] for name in FIELDS}
    assert set(PER_REQUEST) <= set(FIELDS)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_tokens": 2.5}, TypeError, "max_tokens is 2.5; give an integer"),
        ({"max_tokens": "8"}, TypeError, "max_tokens is '8'; give an integer"),
        ({"max_tokens": True}, TypeError, "max_tokens is True; give an integer"),
        ({"draft": True}, TypeError, "draft is True; give an integer"),
        ({"temperature": "hot"}, TypeError, "temperature is 'hot'; give a number"),
        ({"ignore_eos": 1}, TypeError, "ignore_eos is 1; give True or False"),
        ({"max_token": 3}, TypeError, "there is no option 'max_token'; there are max_tokens, draft"),
        ({"stop": ["a", ""]}, ValueError, "give strings that are not empty"),
        ({"draft_by": 1}, TypeError, "draft_by is 1; give the name of a drafter, or a list of names"),
        ({"draft_by": ["mtp", 1]}, TypeError, "draft_by is"),
        ({"draft_by": []}, ValueError, "draft_by names no drafter"),
        ({"logprobs": -1}, ValueError, "from 0 to 64"),
        ({"seed": 2**32}, ValueError, "it must be from 0 to"),
    ],
)
def test_wrong_options_are_named_with_what_was_got(changes: dict, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        options_of(None, changes)


def test_options_given_as_something_else_are_refused() -> None:
    with pytest.raises(TypeError, match=r"options is \{'max_tokens': 3\}; give specjax.GenerateOptions"):
        options_of({"max_tokens": 3}, {})  # type: ignore[arg-type]


def test_numbers_of_numpy_are_numbers() -> None:
    options = options_of(None, {"max_tokens": np.int64(3), "temperature": np.float32(0.5), "top_p": 1, "stop": "x"})
    assert options == GenerateOptions(max_tokens=3, temperature=0.5, stop=("x",))
    assert type(options.max_tokens) is int
    assert hash(options) == hash(GenerateOptions(max_tokens=3, temperature=0.5, stop=("x",)))


def test_lists_give_each_prompt_its_own_value() -> None:
    first, second = options_of_each(
        2, None, {"temperature": [0.0, 0.8], "seed": np.array([1, 2]), "stop": [["a"], []], "draft": 2}
    )
    assert first == GenerateOptions(temperature=0.0, seed=1, stop=("a",), draft=2)
    assert second == GenerateOptions(temperature=0.8, seed=2, stop=(), draft=2)
    by = options_of_each(3, GenerateOptions(draft_by=["ngram", "mtp"]), {"draft_by": ["mtp", None, ["ngram", "mtp"]]})
    assert [each.draft_by for each in by] == [("mtp",), None, ("ngram", "mtp")]
    both = options_of_each(2, None, {"stop": ["a", "b"]})
    assert [each.stop for each in both] == [("a", "b")] * 2, "strings in a list are stop strings of every prompt"
    assert options_of_each(2, [GenerateOptions(seed=1), GenerateOptions(seed=4)], {"draft": [0, DraftConfig(2)]})[
        1
    ] == (GenerateOptions(seed=4, draft=DraftConfig(2)))


def test_lists_of_another_length_and_different_programs_are_refused() -> None:
    with pytest.raises(ValueError, match="seed has 3 values for 2 prompts"):
        options_of_each(2, None, {"seed": [1, 2, 3]})
    with pytest.raises(ValueError, match="options has 1 values for 2 prompts"):
        options_of_each(2, [GenerateOptions()], {})
    with pytest.raises(ValueError, match="must have equal accept, kv_type_k"):
        options_of_each(2, [GenerateOptions(), GenerateOptions(accept="coupled", kv_type_k="q8_0")], {})
