"""GGUF metadata of the Qwen3.5 family <-> `Qwen35Config`.

Source: llama.cpp `src/models/qwen35*.cpp` (what is read, and its defaults) and `conversion/qwen.py` (what is written).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError, MissingMTPWarning
from checkpoints.family import FileFormat
from checkpoints.source import TensorInfo
from specjax.models.qwen3_5.config import FULL_ATTENTION, LINEAR_ATTENTION, MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.rules import GGUF_MTP_EMBEDDING, GGUF_MTP_NORM, GGUF_MTP_OUTPUT, gguf_rules

_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "rope.dimension_sections",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.group_count",
)
_REQUIRED_MOE = ("expert_count", "expert_used_count")
_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_INTERVAL = 4


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen35Config:
    """The config of a GGUF file.

    Args:
        metadata: every key of the file.
        tensors: its tensor table: it tells which optional tensors are there.
        where: the file's name, for messages.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.

    Warns:
        MissingMTPWarning: an MTP block is declared, and none of its tensors is in the file.
    """
    arch = metadata["general.architecture"]
    required = _REQUIRED + (_REQUIRED_MOE if arch == "qwen35moe" else ())
    if absent := [f"{arch}.{key}" for key in required if f"{arch}.{key}" not in metadata]:
        raise ConfigError(f"{where}: the metadata lack {', '.join(absent)}; convert the model again")
    scaling = metadata.get(f"{arch}.rope.scaling.type", "none")
    if scaling != "none":
        raise ConfigError(f"{where}: rope scaling {scaling!r} is not supported for this architecture, only 'none'")
    try:
        return _config(metadata, tensors, arch, where)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where}: the metadata describe no model: {error}") from error


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], arch: str, where: str) -> Qwen35Config:
    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{arch}.{key}", default)

    width, num_heads = get("embedding_length"), _uniform(get("attention.head_count"))
    head_width = get("attention.key_length", width // num_heads)
    declared_mtp = get("nextn_predict_layers", 0)
    num_layers = get("block_count") - declared_mtp
    num_value_heads = get("ssm.time_step_rank")
    recurrent = get("attention.recurrent_layers")
    if recurrent is None:
        layer_types = hybrid_layer_types(num_layers, get("full_attention_interval", _DEFAULT_INTERVAL))
    else:
        layer_types = tuple(LINEAR_ATTENTION if r else FULL_ATTENTION for r in recurrent[:num_layers])
        if len(layer_types) != num_layers:
            raise ValueError(f"attention.recurrent_layers has {len(recurrent)} entries for {num_layers} layers")
    mlp_width = _uniform(get("feed_forward_length", 0))
    moe = None
    if arch == "qwen35moe":
        used = get("expert_used_count")
        moe = MoEConfig(
            num_experts=get("expert_count"),
            experts_per_token=used,
            expert_width=_uniform(get("expert_feed_forward_length", 0)) or mlp_width // used,
            shared_expert_width=get("expert_shared_feed_forward_length", 0) or mlp_width,
        )
    mtp_layers = _mtp_layers(declared_mtp, num_layers, tensors, where)
    return Qwen35Config(
        vocab_size=_vocab_size(metadata, tensors, arch),
        width=width,
        layer_types=layer_types,
        mlp_width=mlp_width,
        num_heads=num_heads,
        num_kv_heads=_uniform(get("attention.head_count_kv", num_heads)),
        head_width=head_width,
        rope_width=get("rope.dimension_count", head_width),
        rope_theta=get("rope.freq_base", _DEFAULT_ROPE_THETA),
        rope_sections=(*get("rope.dimension_sections"), 0)[:4],
        conv_width=get("ssm.conv_kernel"),
        linear_key_heads=get("ssm.group_count"),
        linear_value_heads=num_value_heads,
        linear_key_width=get("ssm.state_size"),
        linear_value_width=get("ssm.inner_size") // num_value_heads,
        norm_eps=_shortest_float32(get("attention.layer_norm_rms_epsilon")),
        context_length=get("context_length"),
        tied_embeddings="output.weight" not in tensors,
        mtp_layers=mtp_layers,
        mtp_own_embedding=mtp_layers > 0 and GGUF_MTP_EMBEDDING.format(num_layers) in tensors,
        mtp_own_output=mtp_layers > 0 and GGUF_MTP_OUTPUT.format(num_layers) in tensors,
        mtp_own_norm=mtp_layers == 0 or GGUF_MTP_NORM.format(num_layers) in tensors,
        moe=moe,
    )


def config_to_gguf(config: Qwen35Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it (key and value widths of the delta nets differ).
    """
    if config.linear_key_width != config.linear_value_width:
        raise ConfigError(
            f"GGUF has one state size for gated delta nets, but linear_key_width is {config.linear_key_width} and"
            f" linear_value_width is {config.linear_value_width}"
        )
    recurrent = [kind == LINEAR_ATTENTION for kind in config.layer_types] + [False] * config.mtp_layers
    keys: dict[str, Any] = {
        "block_count": config.num_layers + config.mtp_layers,
        "context_length": config.context_length,
        "embedding_length": config.width,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "attention.recurrent_layers": recurrent,
        "rope.dimension_count": config.rope_width,
        "rope.dimension_sections": list(config.rope_sections),
        "rope.freq_base": float(config.rope_theta),
        "ssm.conv_kernel": config.conv_width,
        "ssm.inner_size": config.linear_value_heads * config.linear_value_width,
        "ssm.state_size": config.linear_key_width,
        "ssm.time_step_rank": config.linear_value_heads,
        "ssm.group_count": config.linear_key_heads,
    }
    for interval in range(1, config.num_layers + 1):
        if hybrid_layer_types(config.num_layers, interval) == config.layer_types:
            keys["full_attention_interval"] = interval
            break
    if config.mlp_width:
        keys["feed_forward_length"] = config.mlp_width
    if config.mtp_layers:
        keys["nextn_predict_layers"] = config.mtp_layers
    if config.moe is not None:
        keys["expert_count"] = config.moe.num_experts
        keys["expert_used_count"] = config.moe.experts_per_token
        keys["expert_feed_forward_length"] = config.moe.expert_width
        keys["expert_shared_feed_forward_length"] = config.moe.shared_expert_width
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


def _mtp_layers(declared: int, num_layers: int, tensors: Mapping[str, TensorInfo], where: str) -> int:
    if declared > 1:
        raise ValueError(f"{declared} MTP blocks are declared; this family has at most one")
    if declared and not any(name.startswith(f"blk.{num_layers}.") for name in tensors):
        warnings.warn(
            f"{where}: the metadata declare an MTP head, but the file has none of its tensors (blk.{num_layers}.*)."
            " Loading the trunk alone: speculative decoding is not possible with this file.",
            MissingMTPWarning,
            stacklevel=2,
        )
        return 0
    return declared


def _vocab_size(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], arch: str) -> int:
    if (size := metadata.get(f"{arch}.vocab_size")) is not None:
        return size
    if (tokens := metadata.get("tokenizer.ggml.tokens")) is not None:
        return len(tokens)
    if (embedding := tensors.get("token_embd.weight")) is not None:
        return embedding.shape[0]
    raise ValueError("the size of the vocabulary is given by no key, no token list and no token_embd.weight")


def _uniform(value: int | list[int]) -> int:
    """One number for all layers; 0 in a per-layer list stands for layers that have no use for it."""
    if not isinstance(value, list):
        return value
    numbers = set(value) - {0}
    if len(numbers) != 1:
        raise ValueError(f"{value} differs from layer to layer; this architecture has one value for all")
    return numbers.pop()


def _shortest_float32(value: float) -> float:
    """1e-6 stored as float32 reads back as 9.99999997e-07; give back the number that was meant."""
    return float(f"{value:.7g}")


GGUF = FileFormat(
    names=("qwen35", "qwen35moe"),
    read_config=config_from_gguf,
    write_config=config_to_gguf,
    rules=gguf_rules,
    head_count="nextn_predict_layers",
)
"""How the family appears in GGUF files."""
