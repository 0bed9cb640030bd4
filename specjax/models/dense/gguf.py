"""GGUF metadata of plain decoder-only transformers <-> `DenseConfig`.

Source: llama.cpp `src/models/{qwen3,llama}.cpp` (what is read, and its defaults), `conversion/{qwen,llama}.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.source import TensorInfo
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.rules import GGUF_ROPE_FACTORS, gguf_rules

_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DenseConfig:
    """The config of a GGUF file.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.
    """
    arch = metadata["general.architecture"]

    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{arch}.{key}", default)

    if absent := [f"{arch}.{key}" for key in _REQUIRED if get(key) is None]:
        raise ConfigError(f"{where}: the metadata lack {', '.join(absent)}; convert the model again")
    if get("expert_count", 0):
        raise ConfigError(f"{where}: {arch} with experts is not supported, only the dense architecture")
    if (scaling := get("rope.scaling.type", "none")) != "none":
        raise ConfigError(f"{where}: rope scaling {scaling!r} is not supported for this architecture, only 'none'")
    try:
        width, num_heads = get("embedding_length"), get("attention.head_count")
        head_width = get("attention.key_length", width // num_heads)
        if get("rope.dimension_count", head_width) != head_width:
            raise ValueError(f"{get('rope.dimension_count')} of {head_width} dimensions rotate; all must")
        return DenseConfig(
            architecture=arch,
            vocab_size=tensors["token_embd.weight"].shape[0] if "token_embd.weight" in tensors else get("vocab_size"),
            num_layers=get("block_count"),
            width=width,
            mlp_width=get("feed_forward_length"),
            num_heads=num_heads,
            num_kv_heads=get("attention.head_count_kv", num_heads),
            head_width=head_width,
            rope_theta=get("rope.freq_base", 10000.0),
            rope_factors=GGUF_ROPE_FACTORS in tensors,
            norm_eps=float(f"{get('attention.layer_norm_rms_epsilon'):.7g}"),
            context_length=get("context_length"),
            tied_embeddings="output.weight" not in tensors,
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ConfigError(f"{where}: the metadata describe no model: {error}") from error


def config_to_gguf(config: DenseConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    keys = {
        "block_count": config.num_layers,
        "context_length": config.context_length,
        "embedding_length": config.width,
        "feed_forward_length": config.mlp_width,
        "vocab_size": config.vocab_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "rope.dimension_count": config.head_width,
        "rope.freq_base": float(config.rope_theta),
    }
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


GGUF = FileFormat(
    names=("llama", "qwen3"),
    read_config=config_from_gguf,
    write_config=config_to_gguf,
    rules=gguf_rules,
)
"""How the family appears in GGUF files."""
