"""Hugging Face checkpoints of the Step-3.5 family.

Sources: `Step3p7TextConfig` in transformers `models/step3p7/configuration_step3p7.py` (which also reads the keys of the
released files); the names of the released checkpoints, as `conversion_mapping.py` of transformers (`step3p7`) and
`conversion/step3.py` of llama.cpp take them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, weights, within
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import PLUS_ONE
from checkpoints.source import TensorInfo
from specjax.models.parts import hf
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

_KINDS = ("gate", "up", "down")
_LAYER = (
    *weights({**hf.LAYER_NORMS, **hf.QK_NORMS}, PLUS_ONE),
    *hf.ATTENTION,
    *weights({"self_attn.g_proj": "attention.gate_proj"}),
    *hf.MLP,
    *weights({"moe.gate": "moe.router", **{f"share_expert.{x}_proj": f"moe.shared.{x}_proj" for x in _KINDS}}),
    *copies({f"moe.{x}_proj.weight": f"moe.experts_{x}" for x in _KINDS}),
    *copies({"moe.router_bias": "moe.router_bias"}),
)
_OWN_PARTS = (
    "embed_tokens.weight",
    "transformer.shared_head.output.weight",
    "transformer.shared_head.norm.weight",
)
_HEAD = (
    *weights({"enorm": "enorm", "hnorm": "hnorm", "transformer.shared_head.norm": "norm"}, PLUS_ONE),
    *weights({"eh_proj": "eh_proj", "embed_tokens": "embed", "transformer.shared_head.output": "lm_head"}),
)
_VISION = {
    r"(model\.)?(vision_model|vit_large_projector|multi_modal_projector)\..*": "the vision tower; only text is loaded"
}
_FIELDS = Fields(
    Step35Config,
    {
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "head_width": "head_dim",
        "window": "sliding_window",
        "mlp_width": "intermediate_size",
        "norm_eps": "rms_norm_eps",
        "context_length": "max_position_embeddings",
    },
    {"mlp_width": 0, "norm_eps": 1e-5, "context_length": None},
)
_ATTENTION = Fields(AttentionConfig, {"num_heads": "num_attention_heads", "num_kv_heads": "num_attention_groups"})
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "moe_num_experts",
        "experts_per_token": "moe_top_k",
        "expert_width": "moe_intermediate_size",
        "shared_expert_width": "share_expert_dim",
        "normalize": "norm_expert_weight",
        "scale": "moe_router_scaling_factor",
    },
    {"normalize": True, "scale": 1.0},
)
_SLIDING, _HEAD_COUNT = "attention_other_setting", "num_nextn_predict_layers"
_EXPERT_LIMITS, _MLP_LIMITS = "swiglu_limits", "swiglu_limits_shared"
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
    """The config of a Hugging Face checkpoint, whose text model may be nested; see `FileFormat.read_config`."""
    text = hf.text_of(document)
    experts = _EXPERTS.required if any(name.endswith(".moe.gate.weight") for name in tensors) else ()
    hf.need(text, ("num_hidden_layers", "layer_types", *_FIELDS.required, *_ATTENTION.required, *experts), where)
    for key, supported in {**_ONLY, "query_pre_attn_scalar": text["head_dim"]}.items():
        hf.need_value(text, key, supported, where)
    hf.need_causal(text, where)
    if text.get("rope_parameters"):
        raise ConfigError(f"{where}: rope_parameters is not read for this family; say it by the keys of released files,"
                          " rope_theta, partial_rotary_factors and rope_scaling")  # fmt: skip
    num_layers, declared = text["num_hidden_layers"], text.get(_HEAD_COUNT) or 0
    blocks = [f"{hf.trunk_prefix(tensors)}layers.{index}." for index in range(num_layers + declared)]

    def per_layer(key: str, default: Any) -> list[Any]:
        """One value per layer and head; a list may end before the heads, a single value stands for all."""
        value = text.get(key)
        value = value if isinstance(value, list) else [default if value is None else value] * len(blocks)
        return value + [default] * (len(blocks) - len(value))

    kinds = per_layer("layer_types", FULL_ATTENTION)
    expert_limits, mlp_limits = per_layer(_EXPERT_LIMITS, 0.0), per_layer(_MLP_LIMITS, 0.0)
    layers = [
        LayerConfig(
            attention=kinds[index],
            sparse=f"{block}moe.gate.weight" in tensors,
            expert_limit=float(expert_limits[index] or 0.0),
            mlp_limit=float(mlp_limits[index] or 0.0),
        )
        for index, block in enumerate(blocks)
    ]

    def has_head(index: int) -> bool:
        return any(name.startswith(blocks[num_layers + index]) for name in tensors)

    def attention(kind: str, counts: Mapping[str, Any]) -> AttentionConfig:
        first = kinds.index(kind) if kind in kinds else 0
        return AttentionConfig(
            **_ATTENTION.read({**text, **counts}.get),
            rope_width=int(text["head_dim"] * per_layer("partial_rotary_factors", 1.0)[first] + 1e-6),
            rope_theta=float(per_layer("rope_theta", _DEFAULT_ROPE_THETA)[first]),
        )

    moe = None
    if experts:
        biased = any(f"{block}moe.router_bias" in tensors for block in blocks)
        moe = MoEConfig(**_EXPERTS.read(text.get), selection_bias=biased)
    formula = hf.read_formula(hf.rope_of(text), where)
    settings = _FIELDS.read(text.get)
    settings["context_length"] = settings["context_length"] or text["max_seq_len"]
    heads = range(num_layers, num_layers + count_heads(declared, has_head, where))
    return Step35Config(
        **settings,
        layers=tuple(layers[:num_layers]),
        heads=tuple(HeadConfig(layers[i], *own_parts(blocks[i], _OWN_PARTS, tensors)) for i in heads),
        full=attention(FULL_ATTENTION, {}),
        sliding=attention(SLIDING_ATTENTION, text.get(_SLIDING) or {}),
        moe=moe,
        rope_factors=formula is not None,
        rope_formula=formula,
    )


def config_to_hf(config: Step35Config) -> dict[str, Any]:
    """The config.json that describes such a model, with the keys of Step-3.5."""
    layers = config.all_layers
    attention = [config.attention(layer) for layer in layers]
    document: dict[str, Any] = {
        "architectures": ["Step3p5ForCausalLM"],
        "model_type": "step3p5",
        **_FIELDS.write(config),
        "num_hidden_layers": config.num_layers,
        _HEAD_COUNT: config.mtp_layers,
        "layer_types": [layer.attention for layer in layers],
        **_ATTENTION.write(config.full),
        _SLIDING: {
            "attention_type": SLIDING_ATTENTION,
            **_ATTENTION.write(config.sliding),
            "head_dim": config.head_width,
        },
        "use_head_wise_attn_gate": True,
        "rope_theta": [kind.rope_theta for kind in attention],
        "partial_rotary_factors": [kind.rope_width / config.head_width for kind in attention],
        "tie_word_embeddings": False,
        _EXPERT_LIMITS: [layer.expert_limit for layer in layers],
        _MLP_LIMITS: [layer.mlp_limit for layer in layers],
    }
    if (formula := config.rope_formula) is not None:
        document |= {"rope_scaling": hf.write_formula(formula), "yarn_only_types": [FULL_ATTENTION]}
    if (moe := config.moe) is not None:
        document |= {
            "moe_layers_enum": ",".join(str(index) for index, layer in enumerate(config.layers) if layer.sparse),
            **_EXPERTS.write(moe),
            "moe_router_activation": "sigmoid",
            "use_moe_router_bias": moe.selection_bias,
        }
    return document


def hf_rules(config: Step35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model; its `rope_factors` are computed by its `rope_formula`.
        names: the checkpoint's tensor names: they decide the prefix. Empty when writing (prefix `model.`).

    Raises:
        ConfigError: the model has rotary factors, but no known formula, by which alone config.json can state them.
    """
    prefix, full = hf.trunk_prefix(names), config.full
    rules = [
        *hf.divisor_rules(config.rope_factors, config.rope_formula, full.rope_theta, full.rope_width),
        *hf.trunk(_LAYER, config.num_layers, prefix, PLUS_ONE),
    ]
    for index in range(config.mtp_layers):
        block, path = f"{prefix}layers.{config.num_layers + index}.", f"mtp.heads_{index}."
        rules += (*within(_LAYER, block, f"{path}block."), *within(_HEAD, block, path))
    return rule_table(parameter_shapes, config, rules, names, {**_VISION, **hf.ignored(tied=False)})


HF = FileFormat(("step3p5", "step3p7"), config_from_hf, config_to_hf, hf_rules, head_count=_HEAD_COUNT)
