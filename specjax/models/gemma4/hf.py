"""Hugging Face config.json of Gemma 4 <-> `Gemma4Config`.

Source: transformers `models/gemma4/configuration_gemma4.py`, whose defaults are used for absent keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.source import TensorInfo
from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    MoEConfig,
    interleaved_layer_types,
)
from specjax.models.gemma4.rules import hf_rules

REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_REQUIRED_MOE = ("num_experts", "top_k_experts", "moe_intermediate_size")
_ACTIVATION = "gelu_pytorch_tanh"
_DEFAULT_KV_HEADS = 4
_DEFAULT_HEAD_WIDTH, _DEFAULT_FULL_HEAD_WIDTH = 256, 512
_DEFAULT_WINDOW = 512
_DEFAULT_ROTARY_FACTOR = 0.25
_DEFAULT_THETA: Mapping[str, float] = {FULL_ATTENTION: 1e6, SLIDING_ATTENTION: 1e4}


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4Config:
    """The config of a Hugging Face checkpoint: of the text-only class, or nested in the conditional-generation one.

    Args:
        document: config.json.
        tensors: the checkpoint's tensor table.
        where: its name, for messages.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.
    """
    del tensors
    text: Mapping[str, Any] = document.get("text_config") or document
    has_experts = text.get("enable_moe_block", False)
    check_text(text, REQUIRED + (_REQUIRED_MOE if has_experts else ()), where)
    try:
        layer_types = layer_types_of(text)
        sliding, full = attention_of(text, layer_types)
        return Gemma4Config(
            vocab_size=text["vocab_size"],
            width=text["hidden_size"],
            layer_types=layer_types,
            num_heads=text["num_attention_heads"],
            mlp_width=text["intermediate_size"],
            sliding=sliding,
            full=full,
            full_value_is_key=text.get("attention_k_eq_v", False),
            shared_kv_layers=text.get("num_kv_shared_layers", 0),
            wide_shared_mlp=text.get("use_double_wide_mlp", False),
            per_layer_width=text.get("hidden_size_per_layer_input", _DEFAULT_HEAD_WIDTH) or 0,
            moe=MoEConfig(*(text[key] for key in _REQUIRED_MOE)) if has_experts else None,
            logit_cap=text.get("final_logit_softcapping"),
            norm_eps=text.get("rms_norm_eps", 1e-6),
            context_length=text.get("max_position_embeddings", 131072),
            tied_embeddings=document.get("tie_word_embeddings", text.get("tie_word_embeddings", True)),
        )
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise ConfigError(f"{where}: config.json describes no model: {error}") from error


def config_to_hf(config: Gemma4Config) -> dict[str, Any]:
    """The config.json of the text-only class."""
    document: dict[str, Any] = {
        "architectures": ["Gemma4ForCausalLM"],
        **text_document(config.layer_types, config.num_heads, config.sliding, config.full, config.full_value_is_key),
        "vocab_size": config.vocab_size,
        "vocab_size_per_layer_input": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_embeddings,
        "final_logit_softcapping": config.logit_cap,
        "num_kv_shared_layers": config.shared_kv_layers,
        "use_double_wide_mlp": config.wide_shared_mlp,
        "hidden_size_per_layer_input": config.per_layer_width,
        "enable_moe_block": config.moe is not None,
    }
    if config.moe is not None:
        document["num_experts"] = config.moe.num_experts
        document["top_k_experts"] = config.moe.experts_per_token
        document["moe_intermediate_size"] = config.moe.expert_width
    return document


def check_text(text: Mapping[str, Any], required: tuple[str, ...], where: str) -> None:
    """Raise `ConfigError` unless the keys are there and ask for nothing that this family is not built with."""
    if absent := [key for key in required if text.get(key) is None]:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")
    if (activation := text.get("hidden_activation", _ACTIVATION)) != _ACTIVATION:
        raise ConfigError(f"{where}: hidden_activation is {activation!r}; this family is built with {_ACTIVATION!r}")
    if text.get("use_bidirectional_attention") == "all":
        raise ConfigError(f"{where}: use_bidirectional_attention is 'all'; only causal text models can be decoded")
    if text.get("attention_bias", False):
        raise ConfigError(f"{where}: attention_bias is set; this family is built without biases")


def layer_types_of(text: Mapping[str, Any]) -> tuple[str, ...]:
    """The kind of each layer; the last one is full attention whatever the file says, as in transformers."""
    num_layers = text["num_hidden_layers"]
    layer_types = tuple(text.get("layer_types") or interleaved_layer_types(num_layers))
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries, num_hidden_layers is {num_layers}")
    return (*layer_types[:-1], FULL_ATTENTION)


def attention_of(text: Mapping[str, Any], layer_types: tuple[str, ...]) -> tuple[AttentionConfig, AttentionConfig]:
    """What the sliding and what the full layers share."""
    rope = text.get("rope_parameters") or {}
    kinds = {kind: {"rope_type": "default", **rope.get(kind, {})} for kind in _DEFAULT_THETA}
    if FULL_ATTENTION not in rope:
        kinds[FULL_ATTENTION]["rope_type"] = "proportional"
    types = kinds[SLIDING_ATTENTION]["rope_type"], kinds[FULL_ATTENTION]["rope_type"]
    if types != ("default", "proportional") or any(kind.get("factor", 1.0) != 1.0 for kind in kinds.values()):
        raise ValueError(f"rope_parameters {rope} are not supported: sliding layers must be 'default', full ones"
                         " 'proportional', neither with a factor")  # fmt: skip
    theta = {kind: float(kinds[kind].get("rope_theta", default)) for kind, default in _DEFAULT_THETA.items()}
    kv_heads, width = text.get("num_key_value_heads", _DEFAULT_KV_HEADS), text.get("head_dim", _DEFAULT_HEAD_WIDTH)
    full_width = text.get("global_head_dim") or _DEFAULT_FULL_HEAD_WIDTH
    full_kv_heads = (text.get("num_global_key_value_heads") if text.get("attention_k_eq_v") else None) or kv_heads
    overrides = text.get("per_layer_config") or {}
    if overrides:
        own = overrides.get(str(layer_types.index(FULL_ATTENTION)), {})
        full_width, full_kv_heads = own.get("head_dim", width), own.get("num_key_value_heads", kv_heads)
    factor = kinds[FULL_ATTENTION].get("partial_rotary_factor", _DEFAULT_ROTARY_FACTOR)
    sliding = AttentionConfig(
        kv_heads, width, theta[SLIDING_ATTENTION], width, text.get("sliding_window", _DEFAULT_WINDOW)
    )
    return sliding, AttentionConfig(full_kv_heads, full_width, theta[FULL_ATTENTION], 2 * int(factor * full_width // 2))


def text_document(
    layer_types: tuple[str, ...],
    num_heads: int,
    sliding: AttentionConfig,
    full: AttentionConfig,
    full_value_is_key: bool,
) -> dict[str, Any]:
    """The keys of a text config that describe its attention layers.

    Raises:
        ConfigError: only models whose full layers have no V projection can have other KV heads in them.
    """
    if full.num_kv_heads != sliding.num_kv_heads and not full_value_is_key:
        raise ConfigError(
            f"config.json cannot give full layers {full.num_kv_heads} KV heads and sliding ones"
            f" {sliding.num_kv_heads}: they differ only where full layers take V from the K projection"
        )
    return {
        "model_type": "gemma4_text",
        "num_hidden_layers": len(layer_types),
        "layer_types": list(layer_types),
        "num_attention_heads": num_heads,
        "num_key_value_heads": sliding.num_kv_heads,
        "num_global_key_value_heads": full.num_kv_heads if full_value_is_key else None,
        "head_dim": sliding.head_width,
        "global_head_dim": full.head_width,
        "attention_k_eq_v": full_value_is_key,
        "attention_bias": False,
        "sliding_window": sliding.window,
        "hidden_activation": _ACTIVATION,
        "rope_parameters": {
            SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": sliding.rope_theta},
            FULL_ATTENTION: {
                "rope_type": "proportional",
                "rope_theta": full.rope_theta,
                "partial_rotary_factor": full.rope_width / full.head_width,
            },
        },
    }


HF = FileFormat(
    names=("gemma4", "gemma4_text"),
    read_config=config_from_hf,
    write_config=config_to_hf,
    rules=hf_rules,
)
"""How the family appears in Hugging Face folders."""
