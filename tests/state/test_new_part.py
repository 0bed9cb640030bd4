"""A cache of a new kind is one class: conversations, shifts and files take it as they take the project's own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from unrotated import Unrotated

import specjax
from specjax.models.dense import DenseTarget

FIXTURES = Path(__file__).parents[1] / "fixtures"
OPTIONS = specjax.GenerateOptions(max_tokens=12, draft=2, ignore_eos=True)


@dataclass(frozen=True)
class UnrotatedTarget(DenseTarget):
    """A target whose caches keep keys without any position."""

    def init_layers(self, *sizes: Any, **settings: Any) -> tuple[Any, ...]:
        layers = super().init_layers(*sizes, **settings)
        return tuple(Unrotated(cache.keys, cache.values, cache.frequencies) for cache in layers)


def said(turn: int, length: int = 60) -> list[int]:
    """What the user says in a turn: as much as is fed at once, so that there is one program for that."""
    return np.random.default_rng(turn).integers(0, 60, length).tolist()


def talk(model: specjax.Model, path: Path) -> tuple[list[list[int]], list[object]]:
    """A conversation that goes back, outgrows its slots and lies in a file for a while."""
    chat = model.session(OPTIONS, slots=256, when_full="shift", keep=4)
    replies, reuses = [], []
    prompts = [said(0), said(1), said(0)[:40] + said(2), said(3), said(4), said(5)]
    for turn, prompt in enumerate(prompts):
        reply, chat = chat.generate(prompt if turn == 2 else [*chat.conversation, *prompt])
        replies.append(reply.tokens)
        reuses.append((chat.reuse, chat.cuts))
        chat.save(path)
        chat = model.load_session(path)
    assert chat.cuts
    return replies, reuses


def test_a_cache_of_a_new_kind_commits_shifts_goes_back_and_lies_in_files(tmp_path: Path) -> None:
    model = specjax.load(FIXTURES / "dense" / "qwen3" / "hf", drafter="ngram")
    other = replace(model, target=UnrotatedTarget(model.config))
    assert talk(other, tmp_path / "other") == talk(model, tmp_path / "own")
