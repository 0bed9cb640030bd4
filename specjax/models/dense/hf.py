"""Hugging Face config.json of plain decoder-only transformers <-> `DenseConfig`.

Source: transformers `models/{qwen3,llama}/configuration_*.py`, whose defaults are used for absent keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.rope_formula import Llama3Rope
from checkpoints.source import TensorInfo
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.rules import hf_rules

_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_CLASSES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}
_HEAD_WIDTH = {"qwen3": 128}
_UNSUPPORTED = ("attention_bias", "mlp_bias", "use_sliding_window")
_FORMULA = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_context": "original_max_position_embeddings",
}


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DenseConfig:
    """The config of a Hugging Face checkpoint.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.
    """
    del tensors
    if absent := [key for key in _REQUIRED if document.get(key) is None]:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")
    if asked := [key for key in _UNSUPPORTED if document.get(key)]:
        raise ConfigError(f"{where}: {', '.join(asked)}: not supported for this architecture")
    if (activation := document.get("hidden_act", "silu")) != "silu":
        raise ConfigError(f"{where}: hidden_act is {activation!r}; this family is built with 'silu' only")
    rope = document.get("rope_parameters") or document.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ConfigError(f"{where}: rope_type {kind!r} is not supported, only 'default' and 'llama3'")
    arch, width, num_heads = document["model_type"], document["hidden_size"], document["num_attention_heads"]
    try:
        return DenseConfig(
            architecture=arch,
            vocab_size=document["vocab_size"],
            num_layers=document["num_hidden_layers"],
            width=width,
            mlp_width=document["intermediate_size"],
            num_heads=num_heads,
            num_kv_heads=document.get("num_key_value_heads") or num_heads,
            head_width=document.get("head_dim") or _HEAD_WIDTH.get(arch, width // num_heads),
            rope_theta=float(rope.get("rope_theta", document.get("rope_theta", 10000.0))),
            rope_factors=kind == "llama3",
            rope_formula=Llama3Rope(**{a: rope[b] for a, b in _FORMULA.items()}) if kind == "llama3" else None,
            norm_eps=document.get("rms_norm_eps", 1e-6),
            context_length=document.get("max_position_embeddings", 32768 if arch == "qwen3" else 2048),
            tied_embeddings=document.get("tie_word_embeddings", False),
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where}: config.json describes no model: {error}") from error


def config_to_hf(config: DenseConfig) -> dict[str, Any]:
    """The config.json of the class."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_formula is not None:
        rope["rope_type"] = "llama3"
        rope |= {b: getattr(config.rope_formula, a) for a, b in _FORMULA.items()}
    return {
        "architectures": [_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_width,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_embeddings,
        "rope_parameters": rope,
        "attention_bias": False,
    }


HF = FileFormat(
    names=("llama", "qwen3"),
    read_config=config_from_hf,
    write_config=config_to_hf,
    rules=hf_rules,
)
"""How the family appears in Hugging Face folders."""
