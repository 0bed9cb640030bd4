"""Hugging Face config.json of the Qwen3.5 family <-> `Qwen35Config`.

Source: transformers `models/qwen3_5*/configuration_*.py`, whose defaults are used for absent keys.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError, MissingMTPWarning
from checkpoints.rules.qwen3_5 import HF_MTP_EMBEDDING, HF_MTP_NORM, HF_MTP_OUTPUT
from checkpoints.source import TensorInfo
from specjax.models.qwen3_5 import MoEConfig, Qwen35Config, hybrid_layer_types

_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
_REQUIRED_DENSE = ("intermediate_size",)
_REQUIRED_MOE = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
_DEFAULT_SECTIONS = (11, 11, 10)
_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_ROTARY_FACTOR = 0.25


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen35Config:
    """The config of a Hugging Face checkpoint: of a text-only class, or nested in a conditional-generation one.

    Args:
        document: config.json.
        tensors: the checkpoint's tensor table.
        where: its name, for messages.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.

    Warns:
        MissingMTPWarning: an MTP block is declared, and none of its tensors is in the checkpoint.
    """
    text: Mapping[str, Any] = document.get("text_config") or document
    moe = "moe" in text.get("model_type", document.get("model_type", ""))
    required = _REQUIRED + (_REQUIRED_MOE if moe else _REQUIRED_DENSE)
    if absent := [key for key in required if text.get(key) is None]:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")
    if (activation := text.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"{where}: hidden_act is {activation!r}; this family is built with 'silu' only")
    try:
        return _config(document, text, moe, tensors, where)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where}: config.json describes no model: {error}") from error


def _config(
    document: Mapping[str, Any], text: Mapping[str, Any], moe: bool, tensors: Mapping[str, TensorInfo], where: str
) -> Qwen35Config:
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    if (kind := rope.get("rope_type", rope.get("type", "default"))) not in ("default", "mrope"):
        raise ValueError(f"rope_type {kind!r} is not supported for this architecture, only 'default'")
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", _DEFAULT_ROTARY_FACTOR))
    head_width, num_layers = text.get("head_dim", 256), text["num_hidden_layers"]
    layer_types = text.get("layer_types") or hybrid_layer_types(num_layers, text.get("full_attention_interval", 4))
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries, num_hidden_layers is {num_layers}")
    mtp_layers = _mtp_layers(text.get("mtp_num_hidden_layers") or 0, tensors, where)
    return Qwen35Config(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        layer_types=tuple(layer_types),
        mlp_width=text.get("intermediate_size") or 0,
        num_heads=text["num_attention_heads"],
        num_kv_heads=text["num_key_value_heads"],
        head_width=head_width,
        rope_width=int(head_width * factor + 1e-6),
        rope_theta=float(rope.get("rope_theta", text.get("rope_theta", _DEFAULT_ROPE_THETA))),
        rope_sections=(*rope.get("mrope_section", _DEFAULT_SECTIONS), 0)[:4],
        conv_width=text.get("linear_conv_kernel_dim", 4),
        linear_key_heads=text.get("linear_num_key_heads", 16),
        linear_value_heads=text.get("linear_num_value_heads", 32),
        linear_key_width=text.get("linear_key_head_dim", 128),
        linear_value_width=text.get("linear_value_head_dim", 128),
        norm_eps=text.get("rms_norm_eps", 1e-6),
        context_length=text.get("max_position_embeddings", 32768),
        tied_embeddings=document.get("tie_word_embeddings", text.get("tie_word_embeddings", False)),
        mtp_layers=mtp_layers,
        mtp_own_embedding=mtp_layers > 0 and HF_MTP_EMBEDDING in tensors,
        mtp_own_output=mtp_layers > 0 and HF_MTP_OUTPUT in tensors,
        mtp_own_norm=mtp_layers == 0 or HF_MTP_NORM in tensors,
        moe=MoEConfig(*(text[key] for key in _REQUIRED_MOE)) if moe else None,
    )


def config_to_hf(config: Qwen35Config) -> dict[str, Any]:
    """The config.json of the text-only class."""
    document: dict[str, Any] = {
        "architectures": ["Qwen3_5ForCausalLM" if config.moe is None else "Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_text" if config.moe is None else "qwen3_5_moe_text",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "layer_types": list(config.layer_types),
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_embeddings,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.rope_theta,
            "partial_rotary_factor": config.rope_width / config.head_width,
            "mrope_section": list(config.rope_sections[:3]),
            "mrope_interleaved": True,
        },
        "linear_conv_kernel_dim": config.conv_width,
        "linear_num_key_heads": config.linear_key_heads,
        "linear_num_value_heads": config.linear_value_heads,
        "linear_key_head_dim": config.linear_key_width,
        "linear_value_head_dim": config.linear_value_width,
        "mtp_num_hidden_layers": config.mtp_layers,
        "mtp_use_dedicated_embeddings": config.mtp_own_embedding,
    }
    if config.mlp_width:  # GGUF files of sparse models may have one, too
        document["intermediate_size"] = config.mlp_width
    if config.moe is not None:
        document["num_experts"] = config.moe.num_experts
        document["num_experts_per_tok"] = config.moe.experts_per_token
        document["moe_intermediate_size"] = config.moe.expert_width
        document["shared_expert_intermediate_size"] = config.moe.shared_expert_width
    return document


def _mtp_layers(declared: int, tensors: Mapping[str, TensorInfo], where: str) -> int:
    if declared > 1:
        raise ValueError(f"mtp_num_hidden_layers is {declared}; this family has at most one MTP block")
    present = any(name.startswith("mtp.") for name in tensors)
    if declared and not present:
        warnings.warn(
            f"{where}: config.json declares an MTP head, but the checkpoint has none of its tensors (mtp.*)."
            " Loading the trunk alone: speculative decoding is not possible with this checkpoint.",
            MissingMTPWarning,
            stacklevel=2,
        )
    return int(present)
