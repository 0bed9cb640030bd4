"""What comes after a context shift, against llama.cpp, and against caches that keep keys without any position."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_gemma4 import table_gelu
from tiny_models import relative_rms
from unrotated import Unrotated

import specjax
from specjax.decoding.shift import shift_context
from specjax.models.gemma4 import modules as gemma4_modules
from specjax.models.protocol import Params, Target
from specjax.state import SequenceState

FIXTURES = Path(__file__).parents[1] / "fixtures"
SLOTS = 512
PIECE = 100
Steps = list[np.ndarray | tuple[int, int]]
"""Tokens to be fed, and (keep, drop)."""


def law(model: specjax.Model, steps: Steps) -> np.ndarray:
    """The logits of all tokens that are fed, with `Unrotated` caches."""
    layers = model.target.init_layers(1, SLOTS, rows=1, chunk=SLOTS, rollback="replay")
    caches = tuple(Unrotated(cache.keys, cache.values, cache.frequencies, cache.window) for cache in layers)
    return feed_and_shift(model, SequenceState(caches, None, jnp.zeros((1,), jnp.int32)), steps)


@partial(jax.jit, static_argnames="target")
def feed(
    target: Target, params: Params, tokens: jax.Array, count: jax.Array, state: SequenceState
) -> tuple[jax.Array, SequenceState]:
    """Logits of every token [T, V], and the state after the first `count` of them."""
    output, state = target.extend(params, tokens[None], count[None], state, rows="all")
    assert output.logits is not None
    return output.logits[0], state


def feed_pieces(
    model: specjax.Model, state: SequenceState, tokens: np.ndarray
) -> tuple[list[np.ndarray], SequenceState]:
    """Some at a time, for the rings' sake, and padded, so that there is one program."""
    logits = []
    for piece in np.split(tokens.astype(np.int32), range(PIECE, len(tokens), PIECE)):
        padded = np.pad(piece, (0, PIECE - len(piece)))
        some, state = feed(model.target, model.params, padded, np.int32(len(piece)), state)
        logits.append(np.asarray(some)[: len(piece)])
    return logits, state


def with_caches(model: specjax.Model, steps: Steps) -> np.ndarray:
    """The logits of all tokens that are fed, with the model's own caches."""
    return feed_and_shift(model, model.decoder(specjax.GenerateOptions(draft=0)).init_state(1, SLOTS), steps)


def feed_and_shift(model: specjax.Model, state: SequenceState, steps: Steps) -> np.ndarray:
    """The logits of all tokens that are fed, [T, V]."""
    logits: list[np.ndarray] = []
    for step in steps:
        if isinstance(step, tuple):
            keep, drop = (jnp.asarray([count], jnp.int32) for count in step)
            state = shift_context(state, keep, drop)
        else:
            some, state = feed_pieces(model, state, step)
            logits += some
    return np.concatenate(logits)


@pytest.mark.parametrize("name", [pytest.param("gemma4/dense", marks=pytest.mark.slow), "gemma4/edge", "step3_5/flash"])
def test_logits_after_shifts_are_those_of_caches_that_know_no_positions(name: str) -> None:
    """Rings go round before the first shift, and again before the last."""
    tokens = np.random.default_rng(1).integers(0, 300, 700, dtype=np.int32)
    first, second, third, last = np.split(tokens, [300, 400, 600])
    steps = [first, (6, 120), second, (0, 70), third, (40, 300), last]
    model = specjax.load(FIXTURES / name / "hf")
    assert relative_rms(with_caches(model, steps), law(model, steps)) < 1e-5


@pytest.fixture
def gelu_of_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Programs that were compiled with one GELU must not run with the other."""
    feed.clear_cache()
    monkeypatch.setattr(gemma4_modules, "gelu", table_gelu)
    yield
    feed.clear_cache()


@pytest.mark.usefixtures("gelu_of_llama_cpp")
@pytest.mark.parametrize("name", ["dense/qwen3", pytest.param("dense/llama", marks=pytest.mark.slow), "gemma4/dense"])
def test_logits_after_shifts_match_llama_cpp(name: str) -> None:
    """Gemma 4: up to numbers that fall to the other side of a border of llama.cpp's table, as without shifts."""
    want = np.load(FIXTURES / name / "shift.npz")
    first, *pieces = np.split(want["tokens"], np.cumsum(want["fed"])[:-1])
    steps: Steps = [first]
    for (keep, drop), piece in zip(want["shifts"].tolist(), pieces, strict=True):
        steps += [(keep, drop), piece]
    got = with_caches(specjax.load(FIXTURES / name / "model.gguf"), steps)[want["rows"]]
    errors = sorted(relative_rms(ours, theirs) for ours, theirs in zip(got, want["logits"], strict=True))
    if name == "gemma4/dense":
        assert errors[2] < 2e-5  # how many fall where is a matter of rounding
        assert errors[-1] < 1e-3
    else:
        assert errors[-1] < 1e-5
