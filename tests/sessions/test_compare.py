"""Two conversations side by side: where they part, and what the models say of both continuations."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import specjax
from specjax.sessions.session import Session
from specjax.sessions.turns import Turn

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def dense() -> specjax.Model:
    return specjax.load(FIXTURES / "dense/qwen3/hf")


@pytest.fixture(scope="module")
def other() -> specjax.Model:
    """One with other weights and the same vocabulary."""
    return specjax.load(FIXTURES / "dense/llama/hf")


def holding(model: specjax.Model, text: list[int], name: str | None = None) -> Session:
    """A session with a conversation and no state: only the conversation is compared."""
    return replace(model.session(slots=64), conversation=tuple(text), turns=(Turn(2, len(text)),), name=name)


def logprobs(model: specjax.Model, text: list[int], start: int) -> list[float]:
    """Of the tokens from `start`, by the logits of the whole text at once."""
    logits = model.logits(text).astype(np.float64)
    rows = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return [rows[position - 1, text[position]] for position in range(start, len(text))]


TEXT = [*b"abcdefgh"]
A, B = [*TEXT, 10, 20, 30], [*TEXT, 11, 20]


def test_continuations_are_judged_from_where_the_texts_part(dense: specjax.Model) -> None:
    comparison = holding(dense, A).compare(holding(dense, B, "<b>"))
    assert comparison.shared == len(TEXT)
    assert not comparison.equal
    assert comparison.one_model
    first, second = comparison.continuations
    assert (first.name, first.tokens) == ("first", (10, 20, 30))
    assert (second.name, second.tokens) == ("<b>", (11, 20))
    for own, text in ((first, A), (second, B)):
        assert own.text == dense.decode(own.tokens)
        np.testing.assert_allclose(own.logprobs, logprobs(dense, text, len(TEXT)), rtol=1e-4)
        assert own.other_logprobs == own.logprobs
        assert own.total == pytest.approx(math.fsum(own.logprobs))
    text, html = repr(comparison), comparison._repr_html_()
    assert f"8 tokens shared, ending in '{dense.decode(TEXT)}'" in text
    assert f"(3 tokens, log-probability {first.total:.2f}; its first token {first.logprobs[0]:.2f})" in text
    assert "&lt;b&gt;" in html
    assert "<b><b>" not in html


def test_each_of_two_models_judges_both(dense: specjax.Model, other: specjax.Model) -> None:
    comparison = holding(dense, A).compare(holding(other, B))
    assert not comparison.one_model
    first, second = comparison.continuations
    for own, text, model, judge in ((first, A, dense, other), (second, B, other, dense)):
        np.testing.assert_allclose(own.logprobs, logprobs(model, text, len(TEXT)), rtol=1e-4)
        np.testing.assert_allclose(own.other_logprobs, logprobs(judge, text, len(TEXT)), rtol=1e-4)
    assert f"(by the model of second: {first.other_total:.2f})" in repr(comparison)


def test_one_text_may_be_the_beginning_of_the_other(dense: specjax.Model) -> None:
    comparison = holding(dense, TEXT).compare(holding(dense, A))
    assert [each.tokens for each in comparison.continuations] == [(), (10, 20, 30)]
    assert "first: '' (nothing more)" in repr(comparison)
    same = holding(dense, A).compare(holding(dense, A))
    assert same.equal
    assert repr(same).startswith("Comparison(equal: 11 tokens shared")
    assert "The conversations are equal." in same._repr_html_()


def test_sessions_without_anything_in_common_are_refused(dense: specjax.Model) -> None:
    with pytest.raises(specjax.SpecjaxError, match="no token in common at their start"):
        holding(dense, A).compare(holding(dense, [1, *A]))
    with pytest.raises(TypeError, match=r"'chat' is no session.*`reply, chat = chat.generate"):
        holding(dense, A).compare("chat")
    gemma = specjax.load(FIXTURES / "gemma4/dense/hf")
    with pytest.raises(specjax.SpecjaxError, match="vocabularies of 320 and 315 tokens"):
        holding(dense, A).compare(holding(gemma, A))
