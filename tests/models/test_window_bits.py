"""On CPUs a token's logits have the same bits whether it is decoded alone or verified with others.

The native kernels see to it: products with packed matrices, norms, convolutions, attention, the gated delta rule. What
is left to XLA works on one element at a time.
"""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from pallas_kernels import native
from specjax.state import KVTypes, SequenceState, commit

pytestmark = pytest.mark.skipif(not native.available(), reason=native.reason() or "")
TOKENS = 8


def logits(model: specjax.Model, window: int, types: KVTypes) -> np.ndarray:
    """Of two sequences of random tokens, verified in windows of so many; [B, T, V]."""
    tokens = np.random.default_rng(0).integers(0, model.target.vocab_size, (2, TOKENS)).astype(np.int32)
    layers = model.target.init_layers(2, 32, rows=TOKENS, chunk=16, rollback="replay", kv_types=types)
    state, parts = SequenceState(layers, None, jnp.zeros((2,), jnp.int32)), []
    verify = jax.jit(model.target.verify)
    for start in range(0, TOKENS, window):
        output, fed = verify(model.params, tokens[:, start : start + window], jnp.full((2,), window), state)
        parts.append(np.asarray(output.logits))
        state = commit(fed, jnp.full((2,), window))
    return np.concatenate(parts, axis=1)


@cache
def alone(act: str, types: KVTypes) -> tuple[specjax.Model, np.ndarray]:
    """The bundled model, and its logits token by token."""
    model = specjax.load(packed=act)
    return model, logits(model, 1, types)


@pytest.mark.parametrize("window", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(
    ("act", "types"),
    [
        ("a8", KVTypes("q8_0", "turbo3")),
        ("a16", KVTypes("f32", "f32")),
        pytest.param("a8", KVTypes("f32", "f32"), marks=pytest.mark.slow),
        pytest.param("a16", KVTypes("q8_0", "turbo3"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_bundled_model_gives_the_same_bits_in_windows_of_any_length(act: str, types: KVTypes, window: int) -> None:
    model, want = alone(act, types)
    np.testing.assert_array_equal(logits(model, window, types), want)


@pytest.mark.slow
def test_so_does_a_model_of_released_widths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Sums are longer, and gates, norms and convolutions work in several parts."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    write = importlib.import_module("random_model").write_random_model
    config = importlib.import_module("verify_cost").shape_of_0_8b(layers=4, vocab_size=4096)
    write(tmp_path / "random.gguf", config, "Q4_0", "Q8_0")
    model = specjax.load(tmp_path / "random.gguf", packed="a8")
    types = KVTypes("q8_0", "q8_0")
    want = logits(model, 1, types)
    for window in (2, 4):
        np.testing.assert_array_equal(logits(model, window, types), want)
