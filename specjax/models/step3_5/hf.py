"""Hugging Face config.json of the Step-3.5 family <-> `Step35Config`.

Sources: `Step3p7TextConfig` in transformers `models/step3p7/configuration_step3p7.py` (which also reads the keys of the
released files); llama.cpp `conversion/step3.py`.
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
    Llama3Rope,
    MoEConfig,
    Step35Config,
)
from specjax.models.step3_5.rules import (
    HF_HEAD_EMBEDDING,
    HF_HEAD_NORM,
    HF_HEAD_OUTPUT,
    HF_ROUTER,
    HF_ROUTER_BIAS,
    count_heads,
    hf_prefix,
    hf_rules,
)

_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_attention_groups",
    "head_dim",
    "layer_types",
    "sliding_window",
)
_REQUIRED_MOE = ("moe_num_experts", "moe_top_k", "moe_intermediate_size", "share_expert_dim")
_DEFAULT_ROPE_THETA = 10000.0
_ONLY = {
    "hidden_act": "silu",
    "moe_router_activation": "sigmoid",
    "use_head_wise_attn_gate": True,
    "tie_word_embeddings": False,
    "yarn_only_types": [FULL_ATTENTION],
}
"""Keys with a single value that the family has been released with, and that is built."""


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Step35Config:
    """The config of a Hugging Face checkpoint: of Step-3.5, or nested in the conditional-generation one of Step-3.7.

    Args:
        document: config.json.
        tensors: the checkpoint's tensor table: it tells which layers are sparse and which optional tensors are there.
        where: its name, for messages.

    Raises:
        ConfigError: keys are absent (all are listed), contradictory, or ask for something that is not supported.

    Warns:
        MissingMTPWarning: some of the declared MTP heads are not in the checkpoint.
    """
    text: Mapping[str, Any] = document.get("text_config") or document
    sparse = any(name.endswith(".moe.gate.weight") for name in tensors)
    required = _REQUIRED + (_REQUIRED_MOE if sparse else ())
    if absent := [key for key in required if text.get(key) is None]:
        raise ConfigError(f"{where}: config.json lacks {', '.join(absent)}")
    for key, supported in _ONLY.items():
        if (value := text.get(key)) is not None and value != supported:
            raise ConfigError(f"{where}: {key} is {value!r}; this family is built with {supported!r} only")
    try:
        return _config(text, tensors, sparse, where)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ConfigError(f"{where}: config.json describes no model: {error}") from error


def _config(text: Mapping[str, Any], tensors: Mapping[str, TensorInfo], sparse: bool, where: str) -> Step35Config:
    prefix, num_layers = hf_prefix(tensors), text["num_hidden_layers"]
    declared = text.get("num_nextn_predict_layers") or 0
    blocks = num_layers + declared

    def has(name: str, index: int) -> bool:
        return prefix + name.format(index) in tensors

    def per_layer(key: str, default: Any) -> list[Any]:
        """One value per layer and head; a list may end before the heads, a single value stands for all."""
        value = text.get(key)
        value = value if isinstance(value, list) else [default if value is None else value] * blocks
        return value + [default] * (blocks - len(value))

    kinds = per_layer("layer_types", FULL_ATTENTION)
    expert_limits, mlp_limits = per_layer("swiglu_limits", 0.0), per_layer("swiglu_limits_shared", 0.0)

    def layer(index: int) -> LayerConfig:
        return LayerConfig(
            attention=kinds[index],
            sparse=has(HF_ROUTER, index),
            expert_limit=float(expert_limits[index] or 0.0),
            mlp_limit=float(mlp_limits[index] or 0.0),
        )

    def head(index: int) -> HeadConfig:
        return HeadConfig(
            layer=layer(index),
            own_embedding=has(HF_HEAD_EMBEDDING, index),
            own_output=has(HF_HEAD_OUTPUT, index),
            own_norm=has(HF_HEAD_NORM, index),
        )

    def has_head(index: int) -> bool:
        return any(name.startswith(f"{prefix}layers.{num_layers + index}.") for name in tensors)

    def attention(kind: str, counts: Mapping[str, Any]) -> AttentionConfig:
        first = kinds.index(kind) if kind in kinds else 0
        return AttentionConfig(
            num_heads=counts.get("num_attention_heads", text["num_attention_heads"]),
            num_kv_heads=counts.get("num_attention_groups", text["num_attention_groups"]),
            rope_width=int(text["head_dim"] * per_layer("partial_rotary_factors", 1.0)[first] + 1e-6),
            rope_theta=float(per_layer("rope_theta", _DEFAULT_ROPE_THETA)[first]),
        )

    moe = None
    if sparse:
        moe = MoEConfig(
            num_experts=text["moe_num_experts"],
            experts_per_token=text["moe_top_k"],
            expert_width=text["moe_intermediate_size"],
            shared_expert_width=text["share_expert_dim"],
            selection_bias=any(has(HF_ROUTER_BIAS, index) for index in range(blocks)),
            normalize=text.get("norm_expert_weight", True),
            scale=float(text.get("moe_router_scaling_factor", 1.0)),
        )
    formula = _rope_formula(text.get("rope_scaling") or {})
    count = count_heads(declared, has_head, where)
    return Step35Config(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        layers=tuple(layer(index) for index in range(num_layers)),
        heads=tuple(head(num_layers + index) for index in range(count)),
        head_width=text["head_dim"],
        full=attention(FULL_ATTENTION, {}),
        sliding=attention(SLIDING_ATTENTION, text.get("attention_other_setting") or {}),
        window=text["sliding_window"],
        mlp_width=text.get("intermediate_size") or 0,
        moe=moe,
        rope_factors=formula is not None,
        rope_formula=formula,
        norm_eps=text.get("rms_norm_eps", 1e-5),
        context_length=text.get("max_position_embeddings") or text["max_seq_len"],
    )


def _rope_formula(scaling: Mapping[str, Any]) -> Llama3Rope | None:
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ValueError(f"rope_type {kind!r} is not supported for this architecture, only 'default' and 'llama3'")
    return Llama3Rope(
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_context=scaling["original_max_position_embeddings"],
    )


def config_to_hf(config: Step35Config) -> dict[str, Any]:
    """The config.json of Step-3.5."""
    layers = config.all_layers
    attention = [config.attention(layer) for layer in layers]
    document: dict[str, Any] = {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "num_hidden_layers": config.num_layers,
        "num_nextn_predict_layers": config.mtp_layers,
        "layer_types": [layer.attention for layer in layers],
        "num_attention_heads": config.full.num_heads,
        "num_attention_groups": config.full.num_kv_heads,
        "head_dim": config.head_width,
        "attention_other_setting": {
            "attention_type": SLIDING_ATTENTION,
            "num_attention_heads": config.sliding.num_heads,
            "num_attention_groups": config.sliding.num_kv_heads,
            "head_dim": config.head_width,
        },
        "use_head_wise_attn_gate": True,
        "sliding_window": config.window,
        "rope_theta": [kind.rope_theta for kind in attention],
        "partial_rotary_factors": [kind.rope_width / config.head_width for kind in attention],
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": False,
        "swiglu_limits": [layer.expert_limit for layer in layers],
        "swiglu_limits_shared": [layer.mlp_limit for layer in layers],
    }
    if (formula := config.rope_formula) is not None:
        document["rope_scaling"] = {
            "rope_type": "llama3",
            "factor": formula.factor,
            "low_freq_factor": formula.low_freq_factor,
            "high_freq_factor": formula.high_freq_factor,
            "original_max_position_embeddings": formula.original_context,
        }
        document["yarn_only_types"] = [FULL_ATTENTION]
    if (moe := config.moe) is not None:
        document |= {
            "moe_layers_enum": ",".join(str(index) for index, layer in enumerate(config.layers) if layer.sparse),
            "moe_num_experts": moe.num_experts,
            "moe_top_k": moe.experts_per_token,
            "moe_intermediate_size": moe.expert_width,
            "share_expert_dim": moe.shared_expert_width,
            "moe_router_activation": "sigmoid",
            "use_moe_router_bias": moe.selection_bias,
            "norm_expert_weight": moe.normalize,
            "moe_router_scaling_factor": moe.scale,
        }
    return document


HF = FileFormat(
    names=("step3p5", "step3p7"),
    read_config=config_from_hf,
    write_config=config_to_hf,
    rules=hf_rules,
    head_count="num_nextn_predict_layers",
)
"""How the family appears in Hugging Face folders."""
