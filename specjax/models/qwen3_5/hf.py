"""Hugging Face checkpoints of the Qwen3.5 family.

Sources: transformers `models/qwen3_5*/configuration_*.py`, whose defaults are used for absent keys; `modeling_*.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule, Split, Stack
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, NEGATIVE_EXP, PLUS_ONE, Transform, tile_heads
from checkpoints.source import TensorInfo
from specjax.models.parts import hf
from specjax.models.parts.declared_heads import one_head
from specjax.models.parts.names import LayerRules, Names, copies, shapes, weights
from specjax.models.qwen3_5.config import FULL_ATTENTION, MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.parameters import parameter_shapes

_LAYER = weights({"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}, PLUS_ONE)
_ATTENTION = hf.ATTENTION + weights(hf.QK_NORMS, PLUS_ONE)
_MOE = weights(
    {
        "mlp.gate": "moe.router",
        "mlp.shared_expert.gate_proj": "moe.shared.gate_proj",
        "mlp.shared_expert.up_proj": "moe.shared.up_proj",
        "mlp.shared_expert.down_proj": "moe.shared.down_proj",
        "mlp.shared_expert_gate": "moe.shared_gate",
    }
)
TAPS = Transform(insert=(1,))
"""The taps of a convolution, between whose axes files have another one of length 1."""
_VISION = {r"(model\.)?visual\..*": "the vision tower; only the text model is loaded"}
_OWN_EMBEDDING = "mtp.embed_tokens.weight"
_OWN_OUTPUT = "mtp.lm_head.weight"
_OWN_NORM = "mtp.norm.weight"
"""Optional tensors of the MTP block."""
_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_REQUIRED_DENSE = ("intermediate_size",)
_REQUIRED_MOE = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
_DEFAULT_SECTIONS = (11, 11, 10)
_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_ROTARY_FACTOR = 0.25


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen35Config:
    """The config of a Hugging Face checkpoint, whose text model may be nested; see `FileFormat.read_config`."""
    text: Mapping[str, Any] = document.get("text_config") or document
    moe = "moe" in text.get("model_type", document.get("model_type", ""))
    settings = read_settings(text, tensors, where, sparse=moe)
    settings["tied_embeddings"] = document.get("tie_word_embeddings", settings["tied_embeddings"])
    sections = _rope(text).get("mrope_section", _DEFAULT_SECTIONS)
    return Qwen35Config(**settings, rope_sections=(*sections, 0)[:4])


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    return text.get("rope_parameters") or text.get("rope_scaling") or {}


def read_settings(
    text: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str, *, sparse: bool
) -> dict[str, Any]:
    """The settings of a text model, all but `rope_sections`; for the families of this architecture.

    Args:
        text: the part of config.json that describes it.
        tensors, where: see `FileFormat.read_config`.
        sparse: whether it has experts.
    """
    required = _REQUIRED + (_REQUIRED_MOE if sparse else _REQUIRED_DENSE)
    hf.need(text, required, where)
    hf.need_value(text, "hidden_act", "silu", where)
    rope = _rope(text)
    hf.rope_type(rope, where, "default", "mrope")
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", _DEFAULT_ROTARY_FACTOR))
    head_width, num_layers = text.get("head_dim", 256), text["num_hidden_layers"]
    layer_types = text.get("layer_types") or hybrid_layer_types(num_layers, text.get("full_attention_interval", 4))
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries, num_hidden_layers is {num_layers}")
    declared = text.get("mtp_num_hidden_layers") or int(any(name.startswith("mtp.") for name in tensors))
    mtp_layers = one_head(declared, "mtp.", tensors, where)
    return {
        "vocab_size": text["vocab_size"],
        "width": text["hidden_size"],
        "layer_types": tuple(layer_types),
        "mlp_width": text.get("intermediate_size") or 0,
        "num_heads": text["num_attention_heads"],
        "num_kv_heads": text["num_key_value_heads"],
        "head_width": head_width,
        "rope_width": int(head_width * factor + 1e-6),
        "rope_theta": float(rope.get("rope_theta", text.get("rope_theta", _DEFAULT_ROPE_THETA))),
        "conv_width": text.get("linear_conv_kernel_dim", 4),
        "linear_key_heads": text.get("linear_num_key_heads", 16),
        "linear_value_heads": text.get("linear_num_value_heads", 32),
        "linear_key_width": text.get("linear_key_head_dim", 128),
        "linear_value_width": text.get("linear_value_head_dim", 128),
        "norm_eps": text.get("rms_norm_eps", 1e-6),
        "context_length": text.get("max_position_embeddings", 32768),
        "tied_embeddings": text.get("tie_word_embeddings", False),
        "mtp_layers": mtp_layers,
        "mtp_own_embedding": mtp_layers > 0 and _OWN_EMBEDDING in tensors,
        "mtp_own_output": mtp_layers > 0 and _OWN_OUTPUT in tensors,
        "mtp_own_norm": mtp_layers == 0 or _OWN_NORM in tensors,
        "moe": MoEConfig(*(text[key] for key in _REQUIRED_MOE)) if sparse else None,
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
        "mtp_num_hidden_layers": config.mtp_layers,
        "mtp_use_dedicated_embeddings": config.mtp_own_embedding,
    }


def write_settings(config: Qwen35Config) -> dict[str, Any]:
    """The keys of config.json that the families of this architecture have in common."""
    document = {
        **hf.uniform_document(config),
        "layer_types": list(config.layer_types),
        "linear_conv_kernel_dim": config.conv_width,
        "linear_num_key_heads": config.linear_key_heads,
        "linear_num_value_heads": config.linear_value_heads,
        "linear_key_head_dim": config.linear_key_width,
        "linear_value_head_dim": config.linear_value_width,
    }
    if config.mlp_width:  # GGUF files of sparse models may have one, too
        document["intermediate_size"] = config.mlp_width
    if config.moe is not None:
        document["num_experts"] = config.moe.num_experts
        document["num_experts_per_tok"] = config.moe.experts_per_token
        document["moe_intermediate_size"] = config.moe.expert_width
        document["shared_expert_intermediate_size"] = config.moe.shared_expert_width
    return document


def _delta_net(config: Qwen35Config) -> Names:
    groups, width = config.linear_key_heads, config.linear_value_width
    per_group = config.linear_value_heads // groups
    queries_and_keys = 2 * groups * config.linear_key_width
    per_head = tile_heads(groups, per_group, 1, axis=0)
    channels = tile_heads(groups, per_group, width, axis=0, skip=queries_and_keys)
    return (
        ("linear_attn.in_proj_qkv.weight", "delta_net.qkv_proj.weight", channels),
        ("linear_attn.in_proj_z.weight", "delta_net.z_proj.weight", tile_heads(groups, per_group, width, axis=0)),
        ("linear_attn.in_proj_b.weight", "delta_net.beta_proj.weight", per_head),
        ("linear_attn.in_proj_a.weight", "delta_net.alpha_proj.weight", per_head),
        ("linear_attn.conv1d.weight", "delta_net.conv.weight", TAPS.then(channels)),
        ("linear_attn.A_log", "delta_net.a", NEGATIVE_EXP.then(per_head)),
        ("linear_attn.dt_bias", "delta_net.dt_bias", per_head),
        ("linear_attn.norm.weight", "delta_net.norm.weight", IDENTITY),
        ("linear_attn.out_proj.weight", "delta_net.out_proj.weight", tile_heads(groups, per_group, width, axis=1)),
    )


def hf_rules(config: Qwen35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors, see `file_rules`; with fused experts when writing."""
    return file_rules(config, names, partial(copies, _delta_net(config)), lone_experts=False)


def file_rules(config: Qwen35Config, names: Collection[str], delta_net: LayerRules, *, lone_experts: bool) -> RuleTable:
    """Rules for safetensors of a family of this architecture.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide the prefix of the trunk, and between fused experts and one
            tensor per expert. Empty when writing (prefix `model.`).
        delta_net: rules for a gated delta net, given the prefixes of its tensors and of its layer's parameters.
        lone_experts: whether to write one tensor per expert.
    """
    prefix = hf.trunk_prefix(names)

    def moe(block: str, path: str, num_experts: int) -> Iterator[Rule]:
        yield from copies(_MOE, block, path)
        experts = f"{block}mlp.experts."
        if f"{experts}0.gate_proj.weight" in names or (lone_experts and not names):
            for kind in ("gate", "up", "down"):
                sources = tuple(f"{experts}{e}.{kind}_proj.weight" for e in range(num_experts))
                yield Stack(sources, f"{path}moe.experts_{kind}")
        else:
            yield Split(f"{experts}gate_up_proj", (f"{path}moe.experts_gate", f"{path}moe.experts_up"), axis=1)
            yield Copy(f"{experts}down_proj", f"{path}moe.experts_down")

    def layer(block: str, path: str, kind: str) -> Iterator[Rule]:
        yield from copies(_LAYER, block, path)
        if kind == FULL_ATTENTION:
            yield from copies(_ATTENTION, block, path)
        else:
            yield from delta_net(block, path)
        if config.moe is None:
            yield from copies(hf.MLP, block, path)
        else:
            yield from moe(block, path, config.moe.num_experts)

    def rules() -> Iterator[Rule]:
        yield Copy(f"{prefix}embed_tokens.weight", "target.embed.weight")
        for i, kind in enumerate(config.layer_types):
            yield from layer(f"{prefix}layers.{i}.", f"target.layers_{i}.", kind)
        yield Copy(f"{prefix}norm.weight", "target.norm.weight", PLUS_ONE)
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")
        if config.mtp_layers:
            yield from layer("mtp.layers.0.", "mtp.block.", FULL_ATTENTION)
            yield Copy("mtp.pre_fc_norm_embedding.weight", "mtp.enorm.weight", PLUS_ONE)
            yield Copy("mtp.pre_fc_norm_hidden.weight", "mtp.hnorm.weight", PLUS_ONE)
            yield Copy("mtp.fc.weight", "mtp.eh_proj.weight")
            if config.mtp_own_norm:
                yield Copy(_OWN_NORM, "mtp.norm.weight", PLUS_ONE)
            if config.mtp_own_embedding:
                yield Copy(_OWN_EMBEDDING, "mtp.embed.weight")
            if config.mtp_own_output:
                yield Copy(_OWN_OUTPUT, "mtp.lm_head.weight")

    ignored = {**_VISION, **hf.ROTARY_FREQUENCIES, **(hf.REPEATED_HEAD if config.tied_embeddings else {})}
    return RuleTable(tuple(rules()), ignored, shapes(parameter_shapes, config))


HF = FileFormat(
    ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"),
    config_from_hf,
    config_to_hf,
    hf_rules,
    head_count="mtp_num_hidden_layers",
)
