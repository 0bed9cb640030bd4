"""Qwen3-Next against independent implementations, on the same random weights (see tests/fixtures/PROVENANCE.md)."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_head import assert_close, assert_rounds, decode, head_over, load, prefill, reference

import specjax
from specjax.models.qwen3_5 import MoEConfig, hybrid_layer_types, parameter_shapes
from specjax.models.qwen3_next import Qwen3NextConfig
from specjax.state import RollbackStrategy

FIXTURES = Path(__file__).parents[1] / "fixtures" / "qwen3_next"
MODELS = ("a3b", "tied")
FILES = ("hf", "model.gguf")


def of(name: str, program: str) -> dict[str, np.ndarray]:
    """What "transformers" or "llama_cpp" computed; the prompt is with the former."""
    return reference(FIXTURES / name / f"{program}.npz")


@pytest.mark.parametrize("name", MODELS)
def test_gguf_and_safetensors_give_the_same_config_and_parameters(name: str) -> None:
    (gguf_config, gguf), (hf_config, hf) = (load(FIXTURES / name / file) for file in ("model.gguf", "hf"))
    assert gguf_config == hf_config
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), gguf, hf)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", MODELS)
def test_the_trunk_agrees_with_transformers_and_llama_cpp(name: str, file: str) -> None:
    want = of(name, "transformers")
    logits, hidden, _ = prefill(*load(FIXTURES / name / file), want["prompt"])
    assert_close(hidden, want["hidden"])
    assert_close(logits[want["logit_rows"]], want["logits"])
    assert_close(logits[want["logit_rows"]], of(name, "llama_cpp")["logits"])


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", MODELS)
def test_greedy_continuation_equals_that_of_transformers(name: str, file: str) -> None:
    want = of(name, "transformers")
    config, params = load(FIXTURES / name / file)
    logits, _, state = prefill(config, params, want["prompt"])
    got = decode(config, params, jnp.argmax(logits[-1]), state, len(want["greedy"]))
    assert got.tolist() == want["greedy"].tolist()


def test_speculation_changes_nothing() -> None:
    want = of("tied", "transformers")
    model = specjax.load(FIXTURES / "tied" / "model.gguf")
    generation = model.generate(want["prompt"].tolist(), max_tokens=len(want["greedy"]))
    assert generation.tokens == want["greedy"].tolist()
    assert generation.stats.drafted > 0


@pytest.mark.parametrize("name", MODELS)
def test_the_head_over_a_prompt_agrees_with_llama_cpp(name: str) -> None:
    common, want = of(name, "transformers"), of(name, "llama_cpp")
    config, params = load(FIXTURES / name / "model.gguf")
    hidden, logits = head_over(config, params, common["prompt"], common["hidden"])
    assert_close(hidden, want["mtp_hidden"])
    assert_close(logits[common["logit_rows"]], want["mtp_logits"])


@pytest.mark.parametrize("rollback", ["replay", "snapshot"])
@pytest.mark.parametrize(("name", "file"), [("a3b", "hf"), ("tied", "model.gguf")])
def test_rounds_agree_with_llama_cpp(name: str, file: str, rollback: RollbackStrategy) -> None:
    prompt = of(name, "transformers")["prompt"]
    assert_rounds(*load(FIXTURES / name / file), prompt, of(name, "llama_cpp"), rollback)


QWEN3_NEXT_80B_A3B = Qwen3NextConfig(
    vocab_size=151936,
    width=2048,
    layer_types=hybrid_layer_types(48),
    mlp_width=5120,
    num_heads=16,
    num_kv_heads=2,
    head_width=256,
    rope_width=64,
    rope_theta=1e7,
    conv_width=4,
    linear_key_heads=16,
    linear_value_heads=32,
    linear_key_width=128,
    linear_value_width=128,
    context_length=262144,
    mtp_layers=1,
    moe=MoEConfig(num_experts=512, experts_per_token=10, expert_width=512, shared_expert_width=512),
)


def count(shapes: object) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))


def test_parameters_of_the_released_model_add_up() -> None:
    """The model card counts 80 billion, 79 of them in neither table, and 3 that a token reads."""
    config = QWEN3_NEXT_80B_A3B
    assert config.moe is not None
    shapes = parameter_shapes(config)
    trunk, table = count(shapes["target"]), config.vocab_size * config.width
    assert trunk / 1e9 == pytest.approx(80, rel=0.01)
    assert (trunk - 2 * table) / 1e9 == pytest.approx(79, rel=0.01)
    assert count(shapes) == trunk + count(shapes["mtp"]) == 81_324_862_720
    one_expert = 3 * config.width * config.moe.expert_width
    unused = (config.moe.num_experts - config.moe.experts_per_token) * one_expert * config.num_layers
    assert (trunk - unused - 2 * table) / 1e9 == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(("change", "message"), [({"moe": None}, "has experts"), ({"rope_sections": (1, 1)}, "none")])
def test_a_config_of_another_architecture_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"Qwen3NextConfig: .*{message}"):
        replace(QWEN3_NEXT_80B_A3B, **change)
