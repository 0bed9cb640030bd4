"""Structured output where the vocabulary is split: each device masks its own tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.decoding import begin, decode_chunk

pytestmark = pytest.mark.mesh
Load = Callable[..., specjax.Model]

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yz"]}},
    "required": ["a", "b"],
}
REGEX = r"(?:[a-c]{2,6}-)+[0-9]{3}"
LEANING = {"logit_bias": {token: 1.0 - token % 4 for token in range(0, 250, 3)}, "frequency_penalty": 0.7}
DRAWN = {"temperature": 1.5, "seed": 2, "top_k": 30, **LEANING}
PROMPTS = [[9, 17, 30, 201], [45, 6, 7], [101, 55, 8, 9, 10]]


def continued(model: specjax.Model, *samplers: dict) -> list[specjax.Generation]:
    """With each sampler a text held to a schema, one to an expression, and one that is free."""
    held = ({"json_schema": SCHEMA}, {"regex": REGEX}, {})
    options = [
        specjax.GenerateOptions(max_tokens=24, draft=3, logprobs=2, **grammar, **sampler)
        for sampler in samplers
        for grammar in held
    ]
    return model.generate_batch(PROMPTS * len(samplers), options)


@cache
def of_one_device(load: Load) -> dict[bool, list[specjax.Generation]]:
    """Drawn or not, of one batch: draws are keyed by a prompt's index, so that those that draw stand first."""
    said = continued(load("hybrid"), DRAWN, {})
    return {True: said[: len(PROMPTS)], False: said[len(PROMPTS) :]}


@pytest.mark.parametrize(
    ("drawn", "mesh"),
    [
        pytest.param(False, "1x4", id="greedy-1x4"),
        pytest.param(False, "2x2", id="greedy-2x2", marks=pytest.mark.slow),
        pytest.param(True, "1x4", id="drawn-1x4", marks=pytest.mark.slow),
        pytest.param(True, "2x2", id="drawn-2x2"),
    ],
)
def test_texts_are_those_of_one_device(load: Load, mesh: str, drawn: bool) -> None:
    got, want = continued(load("hybrid", mesh=mesh), DRAWN if drawn else {}), of_one_device(load)[drawn]
    assert [each.tokens for each in got] == [each.tokens for each in want]
    assert [each.stats.accepted for each in got] == [each.stats.accepted for each in want]
    for ours, theirs in zip(got, want, strict=True):
        assert ours.logprobs is not None
        assert theirs.logprobs is not None
        np.testing.assert_allclose(
            [each.logprob for each in ours.logprobs], [each.logprob for each in theirs.logprobs], atol=1e-4
        )
    for each in got[:2]:
        if each.finish_reason == "eos":
            assert json.loads(each.text) if each is got[0] else re.fullmatch(REGEX, each.text)
    assert re.match(r"[a-c]{2}", got[1].text)


@pytest.mark.slow
def test_tokens_need_not_divide(load: Load) -> None:
    """Of 271 tokens four devices have 68 each, the last one of which is none; drafts come from a drafter's 90."""
    one, split = (load("qwen3 odd", mesh=mesh, drafter="eagle3 odd") for mesh in (None, "1x4"))
    for options in ({}, {"temperature": 1.5, "seed": 2, "accept": "rejection"}):
        wanted, got = continued(one, options), continued(split, options)
        assert [each.tokens for each in got] == [each.tokens for each in wanted]
        assert [each.stats.accepted for each in got] == [each.stats.accepted for each in wanted]


@pytest.mark.slow
def test_a_loop_of_ones_own_masks_too(load: Load) -> None:
    options = specjax.GenerateOptions(regex=REGEX, draft=2, max_tokens=20)

    def said(model: specjax.Model) -> np.ndarray:
        decoder = model.decoder(options)
        row = model.request(PROMPTS[0], options).settings
        tokens, count = jnp.asarray(PROMPTS[:1]), jnp.asarray([len(PROMPTS[0])])
        settings, grammar = decoder.settings([row]), decoder.constraint([row])
        state, first = begin(decoder, model.params, tokens, count, settings, jnp.asarray([20]), grammar, slots=64)
        assert state.constraint is not None
        state, record = decode_chunk(decoder, model.params, state, 4)
        emitted = np.asarray(record.rounds.tokens)[:, 0], np.asarray(record.rounds.n_emitted)[:, 0]
        return np.concatenate(
            [np.asarray(first.rounds.tokens)[0, 0], *(row[:n] for row, n in zip(*emitted, strict=True))]
        )

    np.testing.assert_array_equal(said(load("hybrid", mesh="1x2")), said(load("hybrid")))
