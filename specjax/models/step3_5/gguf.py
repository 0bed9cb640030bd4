"""GGUF metadata of the Step-3.5 family <-> `Step35Config`.

Source: llama.cpp `src/models/step35.cpp` and `src/llama-model.cpp` (what is read, and its defaults) and
`conversion/step3.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.source import TensorInfo
from specjax.models.step3_5.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    HeadConfig,
    LayerConfig,
    MoEConfig,
    Step35Config,
)
from specjax.models.step3_5.rules import (
    GGUF_HEAD_EMBEDDING,
    GGUF_HEAD_NORM,
    GGUF_HEAD_OUTPUT,
    GGUF_ROPE_FACTORS,
    GGUF_ROUTER,
    GGUF_ROUTER_BIAS,
    count_heads,
    gguf_rules,
)

_ARCH = "step35"
_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
)
_REQUIRED_MOE = (
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_feed_forward_length",
)
_DEFAULT_ROPE_THETA = 10000.0
_SIGMOID = 2
"""llama.cpp's number of the gating function."""


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Step35Config:
    """The config of a GGUF file.

    Args:
        metadata: every key of the file.
        tensors: its tensor table: it tells which layers are sparse and which optional tensors are there.
        where: the file's name, for messages.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.

    Warns:
        MissingMTPWarning: some of the declared MTP heads are not in the file.
    """
    sparse = any(name.endswith("ffn_gate_inp.weight") for name in tensors)
    required = _REQUIRED + (_REQUIRED_MOE if sparse else ())
    if absent := [f"{_ARCH}.{key}" for key in required if f"{_ARCH}.{key}" not in metadata]:
        raise ConfigError(f"{where}: the metadata lack {', '.join(absent)}; convert the model again")
    for key, supported in (("rope.scaling.type", "none"), ("expert_gating_func", _SIGMOID)):
        if (value := metadata.get(f"{_ARCH}.{key}", supported)) != supported:
            raise ConfigError(f"{where}: {key} {value!r} is not supported for this architecture, only {supported!r}")
    try:
        return _config(metadata, tensors, sparse, where)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ConfigError(f"{where}: the metadata describe no model: {error}") from error


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], sparse: bool, where: str) -> Step35Config:
    def get(key: str, default: Any = None) -> Any:
        return metadata.get(f"{_ARCH}.{key}", default)

    def per_layer(key: str, default: Any = None) -> list[Any]:
        value = get(key, default)
        return value if isinstance(value, list) else [value] * blocks

    blocks, declared = get("block_count"), get("nextn_predict_layers", 0)
    num_layers = blocks - declared
    kinds = [
        SLIDING_ATTENTION if slides else FULL_ATTENTION for slides in per_layer("attention.sliding_window_pattern")
    ]
    expert_limits, mlp_limits = per_layer("swiglu_clamp_exp", 0.0), per_layer("swiglu_clamp_shexp", 0.0)

    def layer(index: int) -> LayerConfig:
        return LayerConfig(
            attention=kinds[index],
            sparse=GGUF_ROUTER.format(index) in tensors,
            expert_limit=_shortest_float32(expert_limits[index]),
            mlp_limit=_shortest_float32(mlp_limits[index]),
        )

    def head(index: int) -> HeadConfig:
        return HeadConfig(
            layer=layer(index),
            own_embedding=GGUF_HEAD_EMBEDDING.format(index) in tensors,
            own_output=GGUF_HEAD_OUTPUT.format(index) in tensors,
            own_norm=GGUF_HEAD_NORM.format(index) in tensors,
        )

    def has_head(index: int) -> bool:
        return any(name.startswith(f"blk.{num_layers + index}.") for name in tensors)

    heads, kv_heads = (
        per_layer("attention.head_count"),
        per_layer("attention.head_count_kv", get("attention.head_count")),
    )
    theta = get("rope.freq_base", _DEFAULT_ROPE_THETA)
    head_width = get("attention.key_length")
    rotating = get("rope.dimension_count", head_width)

    def attention(kind: str, rope_width: int, theta: float) -> AttentionConfig:
        first = kinds.index(kind) if kind in kinds else 0
        counts = {(heads[i], kv_heads[i]) for i in range(blocks) if kinds[i] == kind}
        if len(counts) > 1:
            raise ValueError(f"head counts of the {kind} layers differ: {sorted(counts)}")
        return AttentionConfig(heads[first], kv_heads[first], rope_width, _shortest_float32(theta))

    moe = None
    if sparse:
        moe = MoEConfig(
            num_experts=get("expert_count"),
            experts_per_token=get("expert_used_count"),
            expert_width=per_layer("expert_feed_forward_length")[-1],
            shared_expert_width=get("expert_shared_feed_forward_length"),
            selection_bias=any(GGUF_ROUTER_BIAS.format(index) in tensors for index in range(blocks)),
            normalize=get("expert_weights_norm", False),
            scale=_shortest_float32(get("expert_weights_scale", 0.0)) or 1.0,
        )
    count = count_heads(declared, has_head, where)
    return Step35Config(
        vocab_size=_vocab_size(metadata, tensors),
        width=get("embedding_length"),
        layers=tuple(layer(index) for index in range(num_layers)),
        heads=tuple(head(num_layers + index) for index in range(count)),
        head_width=head_width,
        full=attention(FULL_ATTENTION, rotating // 2, theta),
        sliding=attention(
            SLIDING_ATTENTION,
            get("rope.dimension_count_swa", rotating),
            get("rope.freq_base_swa", _DEFAULT_ROPE_THETA),
        ),
        window=get("attention.sliding_window"),
        mlp_width=max(per_layer("feed_forward_length", 0)),
        moe=moe,
        rope_factors=GGUF_ROPE_FACTORS in tensors,
        norm_eps=_shortest_float32(get("attention.layer_norm_rms_epsilon")),
        context_length=get("context_length"),
    )


def config_to_gguf(config: Step35Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    layers = config.all_layers
    attention = [config.attention(layer) for layer in layers]
    rotating = 2 * config.full.rope_width  # llama.cpp halves it for full attention
    keys: dict[str, Any] = {
        "block_count": len(layers),
        "context_length": config.context_length,
        "embedding_length": config.width,
        "vocab_size": config.vocab_size,
        "attention.head_count": [kind.num_heads for kind in attention],
        "attention.head_count_kv": [kind.num_kv_heads for kind in attention],
        "attention.key_length": config.head_width,
        "attention.value_length": config.head_width,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
        "attention.sliding_window": config.window,
        "attention.sliding_window_pattern": [layer.attention == SLIDING_ATTENTION for layer in layers],
        "rope.dimension_count": rotating,
        "rope.freq_base": float(config.full.rope_theta),
        "rope.freq_base_swa": float(config.sliding.rope_theta),
        "swiglu_clamp_exp": [float(layer.expert_limit) for layer in layers],
        "swiglu_clamp_shexp": [float(layer.mlp_limit) for layer in layers],
    }
    if config.sliding.rope_width != rotating:
        keys["rope.dimension_count_swa"] = config.sliding.rope_width
    if config.mlp_width:
        keys["feed_forward_length"] = config.mlp_width
    if config.heads:
        keys["nextn_predict_layers"] = config.mtp_layers
    if (moe := config.moe) is not None:
        keys |= {
            "leading_dense_block_count": [layer.sparse for layer in layers].index(True),
            "expert_count": moe.num_experts,
            "expert_used_count": moe.experts_per_token,
            "expert_feed_forward_length": moe.expert_width,
            "expert_shared_feed_forward_length": moe.shared_expert_width,
            "expert_gating_func": _SIGMOID,
            "expert_weights_norm": moe.normalize,
            "expert_weights_scale": float(moe.scale),
        }
    return {f"{_ARCH}.{key}": value for key, value in keys.items()}


def _vocab_size(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> int:
    if (size := metadata.get(f"{_ARCH}.vocab_size")) is not None:
        return size
    if (embedding := tensors.get("token_embd.weight")) is not None:
        return embedding.shape[0]
    raise ValueError("the size of the vocabulary is given by no key and no token_embd.weight")


def _shortest_float32(value: float) -> float:
    """1e-5 stored as float32 reads back as 9.99999975e-06; give back the number that was meant."""
    return float(f"{value:.7g}")


GGUF = FileFormat(
    names=("step35",),
    read_config=config_from_gguf,
    write_config=config_to_gguf,
    rules=gguf_rules,
    head_count="nextn_predict_layers",
)
"""How the family appears in GGUF files."""
