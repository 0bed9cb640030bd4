"""16-bit weights and KV caches in the loop: tokens differ from those of plain decoding at near-ties only."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from scripted import CAPACITY, ScriptedMTP, ragged_prompts, script
from tiny_models import DENSE, make_params

from checkpoints.mapping.tree import flatten, is_matrix, unflatten
from specjax.analysis.divergence import find_divergence
from specjax.models.protocol import Params
from specjax.models.qwen3_5 import Qwen35Target
from specjax.runtime.generation import Generation
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.state import RollbackStrategy

DRAFTS = 3
PROMPTS = ragged_prompts(DENSE, (1, 2, 3, 9, 15, 16), seed=2)
BATCH = len(PROMPTS)
PLAIN = GenerateOptions(max_tokens=32, draft=0)


@cache
def weights(dtype: str) -> Params:
    """Matrices in `dtype`, the rest in float32, as files are loaded."""
    return unflatten(
        {
            path: jnp.asarray(leaf, dtype if is_matrix(path, leaf.shape) else jnp.float32)
            for path, leaf in flatten(make_params(DENSE)).items()
        }
    )


def make_model(params: Params) -> Model:
    return Model(DENSE, params, None, Qwen35Target(DENSE), ScriptedMTP(DENSE), Path("tiny.gguf"))


@cache
def plain(dtype: str, kv_type: str) -> list[Generation]:
    return make_model(weights(dtype)).generate_batch(PROMPTS, PLAIN, kv_type_k=kv_type, kv_type_v=kv_type)


@pytest.mark.parametrize(
    ("dtype", "kv_type", "rollback"),
    [
        ("bfloat16", "f32", "replay"),
        pytest.param("bfloat16", "f32", "snapshot", marks=pytest.mark.slow),
        pytest.param("float32", "bf16", "replay", marks=pytest.mark.slow),
        pytest.param("float32", "bf16", "snapshot", marks=pytest.mark.slow),
    ],
)
def test_greedy_speculation_equals_plain_greedy_but_for_near_ties(
    dtype: str, kv_type: str, rollback: RollbackStrategy
) -> None:
    want = plain(dtype, kv_type)
    correct = np.random.default_rng(0).integers(0, DRAFTS + 1, (BATCH, CAPACITY))
    model = make_model(script(weights(dtype), PROMPTS, [result.tokens for result in want], correct))
    options = GenerateOptions(max_tokens=32, draft=DRAFTS, kv_type_k=kv_type, kv_type_v=kv_type, rollback=rollback)
    got = model.generate_batch(PROMPTS, options)
    divergences = [
        find_divergence(model, prompt, options, result.tokens, reference.tokens)
        for prompt, result, reference in zip(PROMPTS, got, want, strict=True)
    ]
    assert all(divergence is None or divergence.near_tie for divergence in divergences)
    assert divergences.count(None) >= BATCH // 2, "too few rows went on far enough to show anything"
    assert sum(result.stats.accepted for result in got) > BATCH * 5
