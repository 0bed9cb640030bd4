"""`specjax.diverge` where runs are more than a prompt alone: beside others, with a grammar, from a shared start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from diverging import DRAFTS, PROMPT, diverge
from small_model import write_small_model

import specjax
from specjax.analysis.diverge.rerun import Rerun
from specjax.decoding.grammar import GrammarWindow
from specjax.models.qwen3_5 import Qwen35Target
from specjax.runtime import memory
from specjax.runtime.memory import Memory
from specjax.runtime.prefixes import PrefixCache
from specjax.state import SequenceWindow


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> specjax.Model:
    return specjax.load(write_small_model(tmp_path_factory.mktemp("model") / "small.gguf"))


@dataclass(frozen=True)
class GivesANeighbours(Qwen35Target):
    """The hidden states that it gives to the drafter are those of the row before, which is the row itself if it is
    alone: if `params` say so, so that the programs are those of the sound model.
    """

    def verify(self, params: Any, *args: Any, **settings: Any) -> tuple[Any, SequenceWindow]:
        output, window = super().verify(params, *args, **settings)
        hidden = output.features.final_hidden
        assert hidden is not None
        given = jnp.where(params["neighbours"], jnp.roll(hidden, 1, 0), hidden)
        return output._replace(features=output.features._replace(final_hidden=given)), window


def giving(model: specjax.Model, *, neighbours: bool) -> specjax.Model:
    target = GivesANeighbours(model.target.config)
    return replace(model, target=target, params={**model.params, "neighbours": jnp.bool(neighbours)})


BESIDE = ["import os\nimport", "class A"]
LENGTH = 20
OPTIONS = specjax.GenerateOptions(max_tokens=LENGTH, draft=2, temperature=0.9, seed=5, accept="coupled")


@pytest.fixture(scope="module")
def sound(hybrid: specjax.Model) -> specjax.Model:
    return giving(hybrid, neighbours=False)


@pytest.fixture(scope="module")
def said(sound: specjax.Model) -> list[list[int]]:
    """What follows the prompt at each place of a batch."""
    batches = [[*BESIDE[:place], PROMPT, *BESIDE[place:]] for place in range(3)]
    return [sound.generate_batch(batch, OPTIONS)[place].tokens for place, batch in enumerate(batches)]


def test_a_fault_that_needs_neighbours_shows_beside_them(hybrid: specjax.Model, said: list[list[int]]) -> None:
    broken = giving(hybrid, neighbours=True)
    assert diverge(broken, OPTIONS, said[0], max_tokens=LENGTH).verdict == "equal"
    report = diverge(broken, OPTIONS, said[1], beside=BESIDE, sequence=1, max_tokens=LENGTH)
    assert report.verdict == "state gone wrong"
    assert report.sides[0].state is not None
    assert report.sides[0].state.deviations[0].path == ("drafter", "waiting hidden states")


def test_runs_beside_others_are_those_of_the_batch_and_healthy(sound: specjax.Model, said: list[list[int]]) -> None:
    for place, tokens in enumerate(said):
        run = Rerun(sound, sound.encode(PROMPT), OPTIONS, place, [sound.encode(each) for each in BESIDE])
        assert run.tokens == tokens, place
    report = diverge(sound, OPTIONS, said[2], beside=BESIDE, sequence=2, max_tokens=LENGTH)
    assert report.verdict == "equal", report
    assert report.sides[0].state is not None
    assert report.sides[0].state.drafted_alike == report.sides[0].state.drafted > 0


@dataclass(frozen=True)
class ATargetOfItsOwn(Qwen35Target):
    """Its programs are its own, so that a fault that is planted while they are built stays in them."""


REGEX = "(?:ab|cd){1,20}"


def masked_a_token_too_far(self: GrammarWindow, logits: jax.Array) -> jax.Array:
    """Each place has the mask of the place behind it."""
    behind = jnp.concatenate([self.states[:, 1:], self.states[:, -1:]], axis=1)
    allowed = self.constraint.allowed(behind)
    return jnp.where(allowed, logits, -jnp.inf)


@pytest.mark.slow
def test_texts_with_a_grammar_are_compared_and_a_mask_that_is_a_token_too_far_is_found(
    hybrid: specjax.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = diverge(hybrid, {"draft": DRAFTS}, {"draft": 0}, regex=REGEX)
    assert report.verdict == "equal"
    assert report.sides[0].state is not None
    assert report.sides[0].state.drafted_alike == report.sides[0].state.drafted > 0
    other = diverge(hybrid, {"draft": 0, "regex": REGEX}, {"draft": 0, "regex": "[xyz]{30}"}, states=False)
    assert other.verdict == "settings"

    leaning = {"draft": 0, "frequency_penalty": 9.0}
    other = diverge(hybrid, {"draft": DRAFTS, "frequency_penalty": 9.0}, leaning, states=False)
    assert other.verdict == "equal"
    other = diverge(hybrid, {"draft": 0}, leaning, states=False)
    assert other.verdict == "settings"

    faulty = replace(hybrid, target=ATargetOfItsOwn(hybrid.target.config))
    monkeypatch.setattr(GrammarWindow, "masked", masked_a_token_too_far)
    report = diverge(faulty, {"draft": DRAFTS}, {"draft": 0}, regex=REGEX)
    assert report.verdict == "state gone wrong"
    assert "is not allowed where it stands" in report.reason
    assert report.difference is not None
    assert [each.allowed for each in report.difference.candidates] == [False, True]
    assert report.sides[1].state is not None
    assert report.sides[1].state.healthy, "a round without drafts has one place, and so the right mask"


@pytest.mark.slow
def test_prompts_that_start_alike_are_computed_once_and_a_state_of_another_text_is_found(
    hybrid: specjax.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = np.random.default_rng(3).integers(0, 250, 40).tolist()
    prompt, neighbour = [*shared, *range(100, 112)], [*shared, 7, 8, 9, 10]
    reused = []

    def find(self: PrefixCache, prompt: Sequence[int], *among: Any) -> Memory | None:
        found = whole(self, prompt, *among)
        reused.append(0 if found is None else len(found.tokens))
        return found

    whole = PrefixCache.find
    monkeypatch.setattr(PrefixCache, "find", find)
    sides: Any = {"draft": DRAFTS}, {"draft": DRAFTS, "rollback": "snapshot"}
    report = diverge(hybrid, *sides, prompt=prompt, beside=[neighbour], sequence=1, max_tokens=6)
    assert report.verdict == "equal", report
    assert reused[:2] == [0, len(shared)]

    reused.clear()
    monkeypatch.setattr(memory, "common_prefix", lambda a, b: min(len(a), len(b)))  # whatever the tokens are
    report = diverge(hybrid, *sides, prompt=prompt, beside=[neighbour], sequence=1, max_tokens=6)
    assert reused[:2] == [0, len(neighbour)]
    assert report.verdict == "state gone wrong"
    for side in report.sides:
        assert side.state is not None
        assert side.state.first is not None
        assert side.state.first[0] == 0, "it is wrong already after the prompt"
        keys = next(each for each in side.state.deviations if each.path == ("layer 1", "keys"))
        assert keys.positions[0] == len(shared)
