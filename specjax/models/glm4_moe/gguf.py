"""GGUF files of GLM-4.5 and its successors.

Sources: llama.cpp `src/models/glm4-moe.cpp` (what is read, and its defaults), `conversion/glm.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.parameters import parameter_shapes
from specjax.models.parts import gguf
from specjax.models.parts.fields import Fields
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.rules import rule_table

_LAYER = (
    *weights({"attn_norm": "attn_norm", "post_attention_norm": "mlp_norm"}),
    *gguf.ATTENTION,
    *gguf.QK_NORMS,
    *copies({f"attn_{x}.bias": f"attention.{x}_bias" for x in "qkv"}),
    *gguf.MLP,
    *gguf.EXPERTS,
    *gguf.SHARED_EXPERT,
)
_FIELDS = Fields(
    Glm4MoeConfig,
    {**gguf.UNIFORM, "mlp_width": "feed_forward_length", "dense_layers": "leading_dense_block_count"},
    {**gguf.UNIFORM_DEFAULTS, "dense_layers": 0},
)
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "expert_count",
        "experts_per_token": "expert_used_count",
        "expert_width": "expert_feed_forward_length",
        "normalize": "expert_weights_norm",
        "scale": "expert_weights_scale",
        "groups": "expert_group_count",
        "groups_per_token": "expert_group_used_count",
    },
    {"normalize": False, "scale": 1.0, "groups": 1, "groups_per_token": 1},
)
_SHARED = "expert_shared_count"


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Glm4MoeConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    keys.need("block_count", *_FIELDS.required, *_EXPERTS.required)
    if keys.get("rope.dimension_sections") is not None:
        raise ConfigError(f"{where}: rope.dimension_sections: this is the text model of GLM-4.5V, not supported")
    num_layers, head = keys.read_head(tensors)
    experts = keys.read_experts(_EXPERTS)
    return Glm4MoeConfig(
        **keys.read_uniform(_FIELDS, tensors),
        **head,
        num_layers=num_layers,
        moe=MoEConfig(
            **experts,
            shared_expert_width=experts["expert_width"] * keys.get(_SHARED, 0),
            selection_bias=any(name.endswith(gguf.ROUTER_BIAS) for name in tensors),
        ),
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
    )


def config_to_gguf(config: Glm4MoeConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    keys = {
        "block_count": config.num_layers + config.mtp_layers,
        **gguf.uniform_keys(config, _FIELDS),
        **gguf.expert_keys(config.moe, _EXPERTS),
        _SHARED: config.shared_experts,
        gguf.HEAD_COUNT: config.mtp_layers,
    }
    return gguf.metadata_of(config, keys)


def gguf_rules(config: Glm4MoeConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; the names of its tensors tell whether gates and ups of experts are fused."""
    return rule_table(parameter_shapes, config, gguf.model(_LAYER, config.num_layers), names)


GGUF = FileFormat(("glm4moe",), config_from_gguf, config_to_gguf, gguf_rules, head_count=gguf.HEAD_COUNT)
