"""GGUF metadata of Gemma 4 <-> `Gemma4Config`.

Sources: llama.cpp `src/models/gemma4.cpp` (what is read, and its defaults) and `conversion/gemma.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.source import TensorInfo
from specjax.models.gemma4.config import FULL_ATTENTION, SLIDING_ATTENTION, AttentionConfig, Gemma4Config, MoEConfig
from specjax.models.gemma4.rules import gguf_rules

REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
)
_ROTATING = 4
"""One pair in so many rotates in full layers: the metadata do not say, and `rope_freqs.weight` is checked for it."""
_DEFAULT_ROPE_THETA = 1e6
_DEFAULT_SLIDING_ROPE_THETA = 1e4


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4Config:
    """The config of a GGUF file.

    Args:
        metadata: every key of the file.
        tensors: its tensor table: it tells which optional tensors are there.
        where: the file's name, for messages.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.
    """
    keys = Keys(metadata, "gemma4", where)
    keys.need(REQUIRED)
    try:
        layer_types = keys.layer_types()
        num_layers, shared = len(layer_types), keys.get("attention.shared_kv_layers", 0)
        widths = keys.per_layer("feed_forward_length", num_layers)
        wide = len(set(widths)) > 1
        if wide and widths != [widths[0]] * (num_layers - shared) + [2 * widths[0]] * shared:
            raise ValueError(f"feed_forward_length {widths} is not that of {shared} last layers twice as wide")
        experts = keys.get("expert_count", 0)
        first_full = layer_types.index(FULL_ATTENTION)
        return Gemma4Config(
            vocab_size=tensors["token_embd.weight"].shape[0],
            width=keys.get("embedding_length"),
            layer_types=layer_types,
            num_heads=keys.get("attention.head_count"),
            mlp_width=widths[0],
            sliding=keys.attention(layer_types, SLIDING_ATTENTION),
            full=keys.attention(layer_types, FULL_ATTENTION),
            full_value_is_key=f"blk.{first_full}.attn_v.weight" not in tensors,
            shared_kv_layers=shared,
            wide_shared_mlp=wide,
            per_layer_width=keys.get("embedding_length_per_layer_input", 0),
            moe=MoEConfig(experts, keys.get("expert_used_count"), keys.get("expert_feed_forward_length"))
            if experts
            else None,
            logit_cap=keys.get("final_logit_softcapping"),
            norm_eps=keys.norm_eps(),
            context_length=keys.get("context_length"),
            tied_embeddings="output.weight" not in tensors,
        )
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise ConfigError(f"{where}: the metadata describe no model: {error}") from error


def config_to_gguf(config: Gemma4Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    shared = config.shared_kv_layers
    keys = attention_keys(config.layer_types, config.num_heads, config.sliding, config.full) | {
        "block_count": config.num_layers,
        "context_length": config.context_length,
        "embedding_length": config.width,
        "embedding_length_per_layer_input": config.per_layer_width,
        "vocab_size": config.vocab_size,
        "feed_forward_length": config.mlp_width,
        "attention.shared_kv_layers": shared,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
    }
    if config.wide_shared_mlp:
        keys["feed_forward_length"] = [config.layer(i).mlp_width for i in range(config.num_layers)]
    if config.logit_cap is not None:
        keys["final_logit_softcapping"] = float(config.logit_cap)
    if config.moe is not None:
        keys["expert_count"] = config.moe.num_experts
        keys["expert_used_count"] = config.moe.experts_per_token
        keys["expert_feed_forward_length"] = config.moe.expert_width
    return {f"gemma4.{key}": value for key, value in keys.items()}


class Keys:
    """The metadata of one architecture, by names without its prefix."""

    def __init__(self, metadata: Mapping[str, Any], arch: str, where: str) -> None:
        self.metadata, self.arch, self.where = metadata, arch, where

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or the default."""
        return self.metadata.get(f"{self.arch}.{key}", default)

    def need(self, keys: tuple[str, ...]) -> None:
        """Raise `ConfigError` with every key that is absent."""
        if absent := [f"{self.arch}.{key}" for key in keys if f"{self.arch}.{key}" not in self.metadata]:
            raise ConfigError(f"{self.where}: the metadata lack {', '.join(absent)}; convert the model again")

    def per_layer(self, key: str, num_layers: int) -> list[int]:
        """A value for each layer, whether the file has one for all or a list."""
        value = self.get(key)
        values = value if isinstance(value, list) else [value] * num_layers
        if len(values) != num_layers:
            raise ValueError(f"{key} has {len(values)} entries for {num_layers} layers")
        return values

    def layer_types(self) -> tuple[str, ...]:
        """The kind of each layer."""
        pattern = self.per_layer("attention.sliding_window_pattern", self.get("block_count"))
        return tuple(SLIDING_ATTENTION if sliding else FULL_ATTENTION for sliding in pattern)

    def attention(self, layer_types: tuple[str, ...], kind: str) -> AttentionConfig:
        """What the layers of a kind share."""
        kv_heads = self.per_layer("attention.head_count_kv", len(layer_types))
        own = {heads for heads, other in zip(kv_heads, layer_types, strict=True) if other == kind}
        if len(own) != 1:
            raise ValueError(f"attention.head_count_kv of {kind} layers is {sorted(own)}; it must be one number")
        if kind == FULL_ATTENTION:
            width = self.get("attention.key_length")
            theta = self.get("rope.freq_base", _DEFAULT_ROPE_THETA)
            return AttentionConfig(own.pop(), width, theta, 2 * (width // (2 * _ROTATING)))
        width = self.get("attention.key_length_swa")
        theta = self.get("rope.freq_base_swa", _DEFAULT_SLIDING_ROPE_THETA)
        rotating = self.get("rope.dimension_count_swa", width)
        if rotating != width:
            raise ValueError(f"rope.dimension_count_swa is {rotating}; sliding heads of {width} rotate as a whole")
        return AttentionConfig(own.pop(), width, theta, width, self.get("attention.sliding_window"))

    def norm_eps(self) -> float:
        """1e-6 stored as float32 reads back as 9.99999997e-07; give back the number that was meant."""
        return float(f"{self.get('attention.layer_norm_rms_epsilon'):.7g}")


def attention_keys(
    layer_types: tuple[str, ...], num_heads: int, sliding: AttentionConfig, full: AttentionConfig
) -> dict[str, Any]:
    """The metadata of the attention layers, without the architecture's prefix.

    Raises:
        ConfigError: full layers rotate another part of their heads than llama.cpp's converter assumes, or sliding ones
            not all of theirs.
    """
    if full.rope_width != 2 * (full.head_width // (2 * _ROTATING)) or sliding.rope_width != sliding.head_width:
        raise ConfigError(
            f"GGUF cannot say that {full.rope_width} of {full.head_width} dimensions rotate in full layers and"
            f" {sliding.rope_width} of {sliding.head_width} in sliding ones; it must be a quarter, and all"
        )
    is_sliding = [kind == SLIDING_ATTENTION for kind in layer_types]
    return {
        "attention.head_count": num_heads,
        "attention.head_count_kv": [sliding.num_kv_heads if s else full.num_kv_heads for s in is_sliding],
        "attention.key_length": full.head_width,
        "attention.value_length": full.head_width,
        "attention.key_length_swa": sliding.head_width,
        "attention.value_length_swa": sliding.head_width,
        "attention.sliding_window": sliding.window,
        "attention.sliding_window_pattern": is_sliding,
        "rope.dimension_count": full.head_width,
        "rope.dimension_count_swa": sliding.head_width,
        "rope.freq_base": float(full.rope_theta),
        "rope.freq_base_swa": float(sliding.rope_theta),
    }


GGUF = FileFormat(
    names=("gemma4",),
    read_config=config_from_gguf,
    write_config=config_to_gguf,
    rules=gguf_rules,
)
"""How the family appears in GGUF files."""
