"""Hugging Face checkpoints of the Qwen3.5 family.

Sources: transformers `models/qwen3_5*/configuration_*.py`, whose defaults are used for absent keys; `modeling_*.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Rules, copies, weights, within
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import NEGATIVE_EXP, PLUS_ONE, Transform, tile_heads
from checkpoints.source import TensorInfo
from specjax.models.parts import hf
from specjax.models.parts.declared_heads import one_head
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table
from specjax.models.qwen3_5.config import MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.parameters import parameter_shapes

_LAYER = (
    *weights({**hf.LAYER_NORMS, **hf.QK_NORMS}, PLUS_ONE),
    *hf.ATTENTION,
    *weights({"linear_attn.norm": "delta_net.norm"}),
    *hf.MLP,
    *weights(
        {
            "mlp.gate": "moe.router",
            "mlp.shared_expert.gate_proj": "moe.shared.gate_proj",
            "mlp.shared_expert.up_proj": "moe.shared.up_proj",
            "mlp.shared_expert.down_proj": "moe.shared.down_proj",
            "mlp.shared_expert_gate": "moe.shared_gate",
        }
    ),
)
_OWN_PARTS = ("embed_tokens.weight", "lm_head.weight", "norm.weight")
_HEAD = (
    *weights({"pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm", "norm": "norm"}, PLUS_ONE),
    *weights({"fc": "eh_proj", "embed_tokens": "embed", "lm_head": "lm_head"}),
)
TAPS = Transform(insert=(1,))
"""The taps of a convolution, between whose axes files have another one of length 1."""
_VISION = {r"(model\.)?visual\..*": "the vision tower; only the text model is loaded"}
_FIELDS = Fields(
    Qwen35Config,
    {
        **hf.UNIFORM,
        "mlp_width": "intermediate_size",
        "conv_width": "linear_conv_kernel_dim",
        "linear_key_heads": "linear_num_key_heads",
        "linear_value_heads": "linear_num_value_heads",
        "linear_key_width": "linear_key_head_dim",
        "linear_value_width": "linear_value_head_dim",
    },
    {
        "head_width": 256,
        "norm_eps": 1e-6,
        "context_length": 32768,
        "tied_embeddings": False,
        "mlp_width": 0,
        "conv_width": 4,
        "linear_key_heads": 16,
        "linear_value_heads": 32,
        "linear_key_width": 128,
        "linear_value_width": 128,
    },
)
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "num_experts",
        "experts_per_token": "num_experts_per_tok",
        "expert_width": "moe_intermediate_size",
        "shared_expert_width": "shared_expert_intermediate_size",
    },
)
_HEAD_COUNT = "mtp_num_hidden_layers"
_DEFAULT_SECTIONS = (11, 11, 10)
_DEFAULT_ROTARY_FACTOR = 0.25


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen35Config:
    """The config of a Hugging Face checkpoint, whose text model may be nested; see `FileFormat.read_config`."""
    text = hf.text_of(document)
    moe = "moe" in text.get("model_type", document.get("model_type", ""))
    settings = read_settings(text, tensors, where, sparse=moe)
    settings["tied_embeddings"] = document.get("tie_word_embeddings", settings["tied_embeddings"])
    sections = hf.rope_of(text).get("mrope_section", _DEFAULT_SECTIONS)
    return Qwen35Config(**settings, rope_sections=(*sections, 0)[:4])


def read_settings(
    text: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str, *, sparse: bool
) -> dict[str, Any]:
    """The settings of a text model, all but `rope_sections`; for the families of this architecture.

    Args:
        text: the part of config.json that describes it.
        tensors, where: see `FileFormat.read_config`.
        sparse: whether it has experts.
    """
    hf.need(text, (*_FIELDS.required, *(_EXPERTS.required if sparse else ("intermediate_size",))), where)
    settings = hf.read_uniform(text, tensors, _FIELDS, where)
    hf.rope_type(hf.rope_of(text), where, "default", "mrope")
    num_layers = settings.pop("num_layers")
    layer_types = text.get("layer_types") or hybrid_layer_types(num_layers, text.get("full_attention_interval", 4))
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries, num_hidden_layers is {num_layers}")
    declared = text.get(_HEAD_COUNT) or int(any(name.startswith("mtp.") for name in tensors))
    return {
        **settings,
        **one_head(declared, "mtp.", _OWN_PARTS, tensors, where),
        "layer_types": tuple(layer_types),
        "rope_width": hf.rope_width(text, settings["head_width"], _DEFAULT_ROTARY_FACTOR),
        "rope_theta": hf.rope_theta(text),
        "moe": MoEConfig(**_EXPERTS.read(text.get)) if sparse else None,
    }


def config_to_hf(config: Qwen35Config) -> dict[str, Any]:
    """The config.json of the text-only class."""
    return {
        "architectures": ["Qwen3_5ForCausalLM" if config.moe is None else "Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_text" if config.moe is None else "qwen3_5_moe_text",
        **write_settings(config),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rope_width / config.head_width,
            "mrope_section": list(config.rope_sections[:3]),
            "mrope_interleaved": True,
        },
        _HEAD_COUNT: config.mtp_layers,
        "mtp_use_dedicated_embeddings": config.mtp_own_embedding,
    }


def write_settings(config: Qwen35Config) -> dict[str, Any]:
    """The keys of config.json that the families of this architecture have in common."""
    document = {**hf.uniform_document(config, _FIELDS), "layer_types": list(config.layer_types)}
    if not config.mlp_width:  # GGUF files of sparse models may have one, too
        del document["intermediate_size"]
    return document | ({} if config.moe is None else _EXPERTS.write(config.moe))


def _delta_net(config: Qwen35Config) -> Rules:
    groups, width = config.linear_key_heads, config.linear_value_width
    per_group = config.linear_value_heads // groups
    queries_and_keys = 2 * groups * config.linear_key_width
    per_head = tile_heads(groups, per_group, 1, axis=0)
    channels = tile_heads(groups, per_group, width, axis=0, skip=queries_and_keys)
    return (
        *weights({"linear_attn.in_proj_qkv": "delta_net.qkv_proj"}, channels),
        *weights({"linear_attn.in_proj_z": "delta_net.z_proj"}, tile_heads(groups, per_group, width, axis=0)),
        *weights({"linear_attn.in_proj_b": "delta_net.beta_proj"}, per_head),
        *weights({"linear_attn.in_proj_a": "delta_net.alpha_proj"}, per_head),
        *weights({"linear_attn.conv1d": "delta_net.conv"}, TAPS.then(channels)),
        *copies({"linear_attn.A_log": "delta_net.a"}, NEGATIVE_EXP.then(per_head)),
        *copies({"linear_attn.dt_bias": "delta_net.dt_bias"}, per_head),
        *weights({"linear_attn.out_proj": "delta_net.out_proj"}, tile_heads(groups, per_group, width, axis=1)),
    )


def hf_rules(config: Qwen35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors, see `file_rules`; with fused experts when writing."""
    return file_rules(config, names, _delta_net(config), (*hf.FUSED_EXPERTS, *hf.lone_experts(num_experts(config))))


def num_experts(config: Qwen35Config) -> int:
    """How many experts there are in a layer; 0 in a dense model."""
    return 0 if config.moe is None else config.moe.num_experts


def file_rules(config: Qwen35Config, names: Collection[str], delta_net: Rules, experts: Rules) -> RuleTable:
    """Rules for safetensors of a family of this architecture.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide the prefix of the trunk, and between fused experts and one
            tensor per expert. Empty when writing (prefix `model.`).
        delta_net: rules for a gated delta net, but for its norm.
        experts: rules for the experts, fused or not; those that are written come first.
    """
    layer = _LAYER + delta_net + experts
    head = (*within(layer, "mtp.layers.0.", "mtp.block."), *within(_HEAD, "mtp.", "mtp."))
    rules = (*hf.trunk(layer, config.num_layers, hf.trunk_prefix(names), PLUS_ONE), *head)
    ignored = {**_VISION, **hf.ignored(tied=config.tied_embeddings)}
    return rule_table(parameter_shapes, config, rules, names, ignored)


HF = FileFormat(
    ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    config_from_hf,
    config_to_hf,
    hf_rules,
    head_count=_HEAD_COUNT,
)
