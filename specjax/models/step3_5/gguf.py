"""GGUF files of the Step-3.5 family.

Sources: llama.cpp `src/models/step35.cpp` and `src/llama-model.cpp` (what is read, and its defaults) and
`conversion/step3.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rope_formula import DIVISORS
from checkpoints.mapping.rule import copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import padded_with_ones
from checkpoints.source import TensorInfo
from specjax.models.parts import gguf
from specjax.models.parts.declared_heads import count_heads, own_parts
from specjax.models.parts.fields import Fields
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.rules import rule_table
from specjax.models.step3_5.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    HeadConfig,
    LayerConfig,
    Step35Config,
)
from specjax.models.step3_5.parameters import parameter_shapes

_LAYER = (
    *weights({"attn_norm": "attn_norm", "attn_gate": "attention.gate_proj", "ffn_norm": "mlp_norm"}),
    *gguf.ATTENTION,
    *gguf.QK_NORMS,
    *gguf.MLP,
    *gguf.EXPERTS,
    *gguf.SHARED_EXPERT,
)
_FIELDS = Fields(
    Step35Config,
    {
        "width": "embedding_length",
        "head_width": "attention.key_length",
        "window": "attention.sliding_window",
        "norm_eps": "attention.layer_norm_rms_epsilon",
        "context_length": "context_length",
    },
)
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "expert_count",
        "experts_per_token": "expert_used_count",
        "expert_width": "expert_feed_forward_length",
        "shared_expert_width": "expert_shared_feed_forward_length",
        "normalize": "expert_weights_norm",
        "scale": "expert_weights_scale",
    },
    {"normalize": False, "scale": 1.0},
)
_HEADS, _KV_HEADS, _PATTERN = "attention.head_count", "attention.head_count_kv", "attention.sliding_window_pattern"
_ROTATING, _ROTATING_SLIDING = "rope.dimension_count", "rope.dimension_count_swa"
_THETA, _THETA_SLIDING = "rope.freq_base", "rope.freq_base_swa"
_EXPERT_LIMITS, _MLP_LIMITS = "swiglu_clamp_exp", "swiglu_clamp_shexp"
_DEFAULT_ROPE_THETA = 10000.0


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Step35Config:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    sparse = [f"blk.{index}.ffn_gate_inp.weight" in tensors for index in range(keys.get("block_count", 0))]
    keys.need("block_count", _HEADS, _PATTERN, *_FIELDS.required, *(_EXPERTS.required if any(sparse) else ()))
    keys.need_plain_attention()
    blocks, declared = keys.get("block_count"), keys.get(gguf.HEAD_COUNT, 0)
    num_layers = blocks - declared

    def per_layer(key: str, default: Any = None) -> list[Any]:
        value = keys.get(key, default)
        return value if isinstance(value, list) else [value] * blocks

    kinds = [SLIDING_ATTENTION if slides else FULL_ATTENTION for slides in per_layer(_PATTERN)]
    heads = per_layer(_HEADS)
    kv_heads = per_layer(_KV_HEADS, heads)
    expert_limits, mlp_limits = per_layer(_EXPERT_LIMITS, 0.0), per_layer(_MLP_LIMITS, 0.0)
    layers = [
        LayerConfig(kinds[i], sparse[i], gguf.shortest(expert_limits[i]), gguf.shortest(mlp_limits[i]))
        for i in range(blocks)
    ]

    def has_head(index: int) -> bool:
        return any(name.startswith(f"blk.{num_layers + index}.") for name in tensors)

    def attention(kind: str, rope_width: int, theta: float) -> AttentionConfig:
        first = kinds.index(kind) if kind in kinds else 0
        counts = {(heads[i], kv_heads[i]) for i in range(blocks) if kinds[i] == kind}
        if len(counts) > 1:
            raise ValueError(f"head counts of the {kind} layers differ: {sorted(counts)}")
        return AttentionConfig(heads[first], kv_heads[first], rope_width, gguf.shortest(theta))

    moe = None
    if any(sparse):
        biased = any(name.endswith(gguf.ROUTER_BIAS) for name in tensors)
        moe = MoEConfig(**keys.read_experts(_EXPERTS), selection_bias=biased)
    settings = keys.read(_FIELDS)
    rotating = keys.get(_ROTATING, settings["head_width"])
    numbers = range(num_layers, num_layers + count_heads(declared, has_head, where))
    own = [own_parts(f"blk.{number}.", gguf.OWN_PARTS, tensors) for number in numbers]
    return Step35Config(
        **settings,
        vocab_size=keys.vocab_size(tensors),
        layers=tuple(layers[:num_layers]),
        heads=tuple(HeadConfig(layers[number], *parts) for number, parts in zip(numbers, own, strict=True)),
        full=attention(FULL_ATTENTION, rotating // 2, keys.get(_THETA, _DEFAULT_ROPE_THETA)),
        sliding=attention(
            SLIDING_ATTENTION, keys.get(_ROTATING_SLIDING, rotating), keys.get(_THETA_SLIDING, _DEFAULT_ROPE_THETA)
        ),
        mlp_width=max(per_layer("feed_forward_length", 0)),
        moe=moe,
        rope_factors=gguf.ROPE_FACTORS in tensors,
    )


def config_to_gguf(config: Step35Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    layers = config.all_layers
    attention = [config.attention(layer) for layer in layers]
    rotating = 2 * config.full.rope_width  # llama.cpp halves it for full attention
    keys: dict[str, Any] = {
        "block_count": len(layers),
        **_FIELDS.write(config),
        "vocab_size": config.vocab_size,
        _HEADS: [kind.num_heads for kind in attention],
        _KV_HEADS: [kind.num_kv_heads for kind in attention],
        "attention.value_length": config.head_width,
        _PATTERN: [layer.attention == SLIDING_ATTENTION for layer in layers],
        _ROTATING: rotating,
        _ROTATING_SLIDING: config.sliding.rope_width if config.sliding.rope_width != rotating else None,
        _THETA: float(config.full.rope_theta),
        _THETA_SLIDING: float(config.sliding.rope_theta),
        _EXPERT_LIMITS: [float(layer.expert_limit) for layer in layers],
        _MLP_LIMITS: [float(layer.mlp_limit) for layer in layers],
        "feed_forward_length": config.mlp_width or None,
        gguf.HEAD_COUNT: config.mtp_layers or None,
    }
    if config.moe is not None:
        keys |= gguf.expert_keys(config.moe, _EXPERTS)
        keys["leading_dense_block_count"] = [layer.sparse for layer in layers].index(True)
    return gguf.metadata_of(config, keys)


def gguf_rules(config: Step35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; the names of its tensors tell whether gates and ups of experts are fused."""
    stored = max(config.attention(layer).rope_width for layer in config.layers) // 2
    divisors = copies({gguf.ROPE_FACTORS: DIVISORS}, padded_with_ones(config.full.rope_width // 2, stored))
    rules = [*divisors, *gguf.trunk(_LAYER, config.num_layers)]
    for index in range(config.mtp_layers):
        rules += gguf.head(_LAYER, config.num_layers + index, f"mtp.heads_{index}.")
    return rule_table(parameter_shapes, config, rules, names)


GGUF = FileFormat(("step35",), config_from_gguf, config_to_gguf, gguf_rules, head_count=gguf.HEAD_COUNT)
