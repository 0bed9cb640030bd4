"""GLM-4.5: the released sizes, and configs that are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from one_head import load
from parameter_count import count

from specjax.models.glm4_moe import FAMILY, Glm4MoeConfig, parameter_shapes
from specjax.models.parts.moe import MoEConfig

FIXTURES = Path(__file__).parents[1] / "fixtures" / "glm4_moe"

# Settings of the released models: https://docs.nvidia.com/nemo/megatron-bridge/latest/models/llm/glm45.html lists their
# sizes, transformers `models/glm4_moe` the others.
COMMON = {
    "vocab_size": 151552,
    "num_heads": 96,
    "num_kv_heads": 8,
    "head_width": 128,
    "rope_width": 64,
    "rope_theta": 1e6,
    "attention_bias": True,
    "mtp_layers": 1,
}
GLM_45 = Glm4MoeConfig(
    **COMMON,
    num_layers=92,
    dense_layers=3,
    width=5120,
    mlp_width=12288,
    moe=MoEConfig(160, 8, 1536, 1536, scale=2.5),
    qk_norm=True,
    mtp_own_embedding=True,
    mtp_own_output=True,
)
GLM_45_AIR = Glm4MoeConfig(
    **COMMON,
    num_layers=46,
    dense_layers=1,
    width=4096,
    mlp_width=10944,
    moe=MoEConfig(128, 8, 1408, 1408),
    mtp_own_embedding=True,
    mtp_own_output=True,
)


# With the MTP block: what llama-bench prints of GGUFs of the released models ("glm4moe 355B.A32B", 358.34 B, and
# "glm4moe 106B.A12B", 110.47 B); the Hugging Face hub counts as many in the safetensors of zai-org/GLM-4.5 (358.34B).
# Without it: what llama-bench prints of a GGUF of Air that was made without one (106.85 B); of the other size there is
# only the card's 355. The cards say that a token reads 32 and 12.
@pytest.mark.parametrize(
    ("config", "whole", "trunk", "read"),
    [(GLM_45, 358.34, pytest.approx(355, rel=0.01), 32), (GLM_45_AIR, 110.47, pytest.approx(106.85, rel=0.0001), 12)],
    ids=["GLM-4.5", "GLM-4.5-Air"],
)
def test_parameters_of_the_released_models_add_up(config: Glm4MoeConfig, whole: float, trunk: Any, read: float) -> None:
    shapes, moe = parameter_shapes(config), config.moe
    assert count(shapes) / 1e9 == pytest.approx(whole, rel=0.0001)
    assert count(shapes["target"]) / 1e9 == trunk
    unused = (moe.num_experts - moe.experts_per_token) * 3 * config.width * moe.expert_width * sum(config.layer_kinds)
    table = config.vocab_size * config.width
    assert (count(shapes["target"]) - unused - 2 * table) / 1e9 == pytest.approx(read, rel=0.07)


def test_shapes_are_those_of_initialised_parameters() -> None:
    for name in ("large", "air", "plain"):
        config, params = load(FIXTURES / name / "hf")
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, parameter_shapes(config))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dense_layers": 47}, "dense_layers is 47; there are 46 layers"),
        ({"rope_width": 130}, "rope_width"),
        ({"num_kv_heads": 7}, "must be a multiple"),
    ],
)
def test_contradicting_numbers_are_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=f"Glm4MoeConfig: .*{message}"):
        replace(GLM_45_AIR, **change)


def test_a_shared_expert_that_files_cannot_name_is_refused_where_one_is_written() -> None:
    config = replace(GLM_45_AIR, moe=MoEConfig(128, 8, 1408, 1000))
    for kind in (FAMILY.gguf, FAMILY.hf):
        with pytest.raises(ValueError, match="Glm4MoeConfig: the shared expert's width"):
            kind.write_config(config)


def test_the_released_model_can_be_split() -> None:
    assert GLM_45_AIR.shard(8).moe.shared_expert_width == 1408 // 8


@pytest.mark.parametrize(("groups", "used"), [(3, 1), (8, 1), (4, 5), (4, 0)])
def test_groups_of_experts_that_cannot_be_are_refused(groups: int, used: int) -> None:
    with pytest.raises(ValueError, match="groups"):
        MoEConfig(8, 2, 16, 16, groups=groups, groups_per_token=used)
