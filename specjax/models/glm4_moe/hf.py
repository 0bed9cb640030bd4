"""Hugging Face checkpoints of GLM-4.5 and its successors.

Sources: transformers `models/glm4_moe`, whose defaults are used for absent keys; the names of the MTP layer's tensors
as `conversion/glm.py` of llama.cpp takes them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, weights, within
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.parameters import parameter_shapes
from specjax.models.parts import hf
from specjax.models.parts.declared_heads import one_head
from specjax.models.parts.fields import Fields
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.rules import rule_table

_LAYER = (
    *weights(hf.LAYER_NORMS),
    *hf.ATTENTION,
    *weights(hf.QK_NORMS),
    *copies({f"self_attn.{x}_proj.bias": f"attention.{x}_bias" for x in "qkv"}),
    *hf.MLP,
    *weights({"mlp.gate": "moe.router"}),
    *weights({f"mlp.shared_experts.{x}_proj": f"moe.shared.{x}_proj" for x in ("gate", "up", "down")}),
    *copies({"mlp.gate.e_score_correction_bias": "moe.router_bias"}),
)
_OWN_PARTS = ("embed_tokens.weight", "shared_head.head.weight", "shared_head.norm.weight")
_HEAD = weights(
    {
        "enorm": "enorm",
        "hnorm": "hnorm",
        "eh_proj": "eh_proj",
        "embed_tokens": "embed",
        "shared_head.head": "lm_head",
        "shared_head.norm": "norm",
    }
)
_FIELDS = Fields(
    Glm4MoeConfig,
    {
        **hf.UNIFORM,
        "mlp_width": "intermediate_size",
        "dense_layers": "first_k_dense_replace",
        "attention_bias": "attention_bias",
        "qk_norm": "use_qk_norm",
    },
    {
        "dense_layers": 1,
        "head_width": None,
        "norm_eps": 1e-5,
        "context_length": 131072,
        "tied_embeddings": False,
        "attention_bias": False,
        "qk_norm": False,
    },
)
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "n_routed_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "normalize": "norm_topk_prob",
        "scale": "routed_scaling_factor",
        "groups": "n_group",
        "groups_per_token": "topk_group",
    },
    {"normalize": True, "scale": 1.0, "groups": 1, "groups_per_token": 1},
)
_SHARED, _HEAD_COUNT = "n_shared_experts", "num_nextn_predict_layers"
_DEFAULT_ROTARY_FACTOR = 0.5
_BLOCK = "model.layers.{}."


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Glm4MoeConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    text = hf.text_of(document)
    hf.need(text, (*_FIELDS.required, *_EXPERTS.required), where)
    hf.rope_type(hf.rope_of(text), where, "default")
    settings, experts = hf.read_uniform(text, tensors, _FIELDS, where), _EXPERTS.read(text.get)
    if (shared := text.get(_SHARED, 1)) < 1:
        raise ConfigError(f"{where}: {_SHARED} is {shared}; this family is built with one or more")
    block = _BLOCK.format(settings["num_layers"])
    declared = text.get(_HEAD_COUNT) or int(any(name.startswith(block) for name in tensors))
    return Glm4MoeConfig(
        **settings,
        **one_head(declared, block, _OWN_PARTS, tensors, where),
        rope_width=hf.rope_width(text, settings["head_width"], _DEFAULT_ROTARY_FACTOR),
        rope_theta=hf.rope_theta(text),
        moe=MoEConfig(**experts, shared_expert_width=experts["expert_width"] * shared),
    )


def config_to_hf(config: Glm4MoeConfig) -> dict[str, Any]:
    """The config.json in the form of the released ones."""
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        **hf.uniform_document(config, _FIELDS),
        "partial_rotary_factor": config.rope_width / config.head_width,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        **_EXPERTS.write(config.moe),
        _SHARED: config.shared_experts,
        _HEAD_COUNT: config.mtp_layers,
    }


def hf_rules(config: Glm4MoeConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide between fused experts and one tensor per expert. Empty when
            writing (one tensor per expert, as released).
    """
    layer = (*_LAYER, *hf.lone_experts(config.moe.num_experts), *hf.FUSED_EXPERTS)
    block = _BLOCK.format(config.num_layers)
    head = (*within(layer, block, "mtp.block."), *within(_HEAD, block, "mtp."))
    rules = (*hf.trunk(layer, config.num_layers), *head)
    return rule_table(parameter_shapes, config, rules, names, hf.ignored(tied=config.tied_embeddings))


HF = FileFormat(("glm4_moe",), config_from_hf, config_to_hf, hf_rules, head_count=_HEAD_COUNT)
