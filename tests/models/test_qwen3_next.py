"""Qwen3-Next: the released size, and configs that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from parameter_count import count

from specjax.models.qwen3_5 import MoEConfig, hybrid_layer_types, parameter_shapes
from specjax.models.qwen3_next import Qwen3NextConfig

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
