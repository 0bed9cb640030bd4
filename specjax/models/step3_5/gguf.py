"""GGUF files of the Step-3.5 family.

Sources: llama.cpp `src/models/step35.cpp` and `src/llama-model.cpp` (what is read, and its defaults) and
`conversion/step3.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rope_formula import DIVISORS
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, padded_with_ones
from checkpoints.source import TensorInfo
from specjax.models.parts.declared_heads import count_heads
from specjax.models.parts.gguf import (
    ATTENTION,
    EXPERTS,
    EXPERTS_GATE_UP,
    HEAD_EMBEDDING,
    HEAD_NORM,
    HEAD_OUTPUT,
    MLP,
    QK_NORMS,
    ROPE_FACTORS,
    SHARED_EXPERT,
    Keys,
    head_rules,
    shortest,
)
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.names import shapes, weights
from specjax.models.step3_5.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    HeadConfig,
    LayerConfig,
    Step35Config,
)
from specjax.models.step3_5.parameters import parameter_shapes
from specjax.models.step3_5.rules import LayerNames, layer_rules

_NAMES = LayerNames(
    common=ATTENTION
    + QK_NORMS
    + weights({"attn_norm": "attn_norm", "attn_gate": "attention.gate_proj", "ffn_norm": "mlp_norm"}),
    dense=MLP,
    sparse=EXPERTS + EXPERTS_GATE_UP + SHARED_EXPERT,
    router_bias=(("exp_probs_b.bias", "moe.router_bias", IDENTITY),),
)
_ROUTER = "blk.{}.ffn_gate_inp.weight"
_ROUTER_BIAS = "blk.{}.exp_probs_b.bias"
"""Optional tensors; the block's number stands in the braces."""

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
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = Keys(metadata, where)
    sparse = any(name.endswith("ffn_gate_inp.weight") for name in tensors)
    keys.need(*_REQUIRED, *(_REQUIRED_MOE if sparse else ()))
    keys.need_no_rope_scaling()
    if (gating := keys.get("expert_gating_func", _SIGMOID)) != _SIGMOID:
        raise ConfigError(
            f"{where}: expert_gating_func {gating!r} is not supported for this architecture, only {_SIGMOID}"
        )
    blocks, declared = keys.get("block_count"), keys.get("nextn_predict_layers", 0)
    num_layers = blocks - declared

    def per_layer(key: str, default: Any = None) -> list[Any]:
        value = keys.get(key, default)
        return value if isinstance(value, list) else [value] * blocks

    kinds = [
        SLIDING_ATTENTION if slides else FULL_ATTENTION for slides in per_layer("attention.sliding_window_pattern")
    ]
    expert_limits, mlp_limits = per_layer("swiglu_clamp_exp", 0.0), per_layer("swiglu_clamp_shexp", 0.0)

    def layer(index: int) -> LayerConfig:
        return LayerConfig(
            attention=kinds[index],
            sparse=_ROUTER.format(index) in tensors,
            expert_limit=shortest(expert_limits[index]),
            mlp_limit=shortest(mlp_limits[index]),
        )

    def head(index: int) -> HeadConfig:
        return HeadConfig(
            layer=layer(index),
            own_embedding=HEAD_EMBEDDING.format(index) in tensors,
            own_output=HEAD_OUTPUT.format(index) in tensors,
            own_norm=HEAD_NORM.format(index) in tensors,
        )

    def has_head(index: int) -> bool:
        return any(name.startswith(f"blk.{num_layers + index}.") for name in tensors)

    heads, kv_heads = (
        per_layer("attention.head_count"),
        per_layer("attention.head_count_kv", keys.get("attention.head_count")),
    )
    theta = keys.get("rope.freq_base", _DEFAULT_ROPE_THETA)
    head_width = keys.get("attention.key_length")
    rotating = keys.get("rope.dimension_count", head_width)

    def attention(kind: str, rope_width: int, theta: float) -> AttentionConfig:
        first = kinds.index(kind) if kind in kinds else 0
        counts = {(heads[i], kv_heads[i]) for i in range(blocks) if kinds[i] == kind}
        if len(counts) > 1:
            raise ValueError(f"head counts of the {kind} layers differ: {sorted(counts)}")
        return AttentionConfig(heads[first], kv_heads[first], rope_width, shortest(theta))

    moe = None
    if sparse:
        moe = MoEConfig(
            num_experts=keys.get("expert_count"),
            experts_per_token=keys.get("expert_used_count"),
            expert_width=per_layer("expert_feed_forward_length")[-1],
            shared_expert_width=keys.get("expert_shared_feed_forward_length"),
            selection_bias=any(_ROUTER_BIAS.format(index) in tensors for index in range(blocks)),
            normalize=keys.get("expert_weights_norm", False),
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,
        )
    count = count_heads(declared, has_head, where)
    return Step35Config(
        vocab_size=keys.vocab_size(tensors),
        width=keys.get("embedding_length"),
        layers=tuple(layer(index) for index in range(num_layers)),
        heads=tuple(head(num_layers + index) for index in range(count)),
        head_width=head_width,
        full=attention(FULL_ATTENTION, rotating // 2, theta),
        sliding=attention(
            SLIDING_ATTENTION,
            keys.get("rope.dimension_count_swa", rotating),
            keys.get("rope.freq_base_swa", _DEFAULT_ROPE_THETA),
        ),
        window=keys.get("attention.sliding_window"),
        mlp_width=max(per_layer("feed_forward_length", 0)),
        moe=moe,
        rope_factors=ROPE_FACTORS in tensors,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=keys.get("context_length"),
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
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


def gguf_rules(config: Step35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; `names` decide nothing here: what is optional is in the config."""
    del names

    def head(index: int, own: HeadConfig) -> Iterator[Rule]:
        number, path = config.num_layers + index, f"mtp.heads_{index}."
        yield from layer_rules(config, own.layer, f"blk.{number}.", f"{path}block.", _NAMES)
        yield from head_rules(
            number,
            path,
            own_norm=own.own_norm,
            own_embedding=own.own_embedding,
            own_output=own.own_output,
        )

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        if config.rope_factors:
            stored = max(config.attention(layer).rope_width for layer in config.layers) // 2
            yield Copy(ROPE_FACTORS, DIVISORS, padded_with_ones(config.full.rope_width // 2, stored))
        for i, layer in enumerate(config.layers):
            yield from layer_rules(config, layer, f"blk.{i}.", f"target.layers_{i}.", _NAMES)
        yield Copy("output_norm.weight", "target.norm.weight")
        yield Copy("output.weight", "target.lm_head.weight")
        for index, own in enumerate(config.heads):
            yield from head(index, own)

    return RuleTable(tuple(rules()), {}, shapes(parameter_shapes, config))


GGUF = FileFormat(("step35",), config_from_gguf, config_to_gguf, gguf_rules, head_count="nextn_predict_layers")
