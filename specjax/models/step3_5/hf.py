"""Hugging Face checkpoints of the Step-3.5 family.

Sources: `Step3p7TextConfig` in transformers `models/step3p7/configuration_step3p7.py` (which also reads the keys of the
released files); the names of the released checkpoints, as `conversion_mapping.py` of transformers (`step3p7`) and
`conversion/step3.py` of llama.cpp take them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, PLUS_ONE
from checkpoints.source import TensorInfo
from specjax.models.parts import hf
from specjax.models.parts.declared_heads import count_heads
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.names import copies, shapes, weights
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

_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}
_NAMES = LayerNames(
    common=hf.ATTENTION
    + weights({"self_attn.g_proj": "attention.gate_proj"})
    + weights({**_NORMS, **hf.QK_NORMS}, PLUS_ONE),
    dense=hf.MLP,
    sparse=weights(
        {
            "moe.gate": "moe.router",
            "share_expert.gate_proj": "moe.shared.gate_proj",
            "share_expert.up_proj": "moe.shared.up_proj",
            "share_expert.down_proj": "moe.shared.down_proj",
        }
    )
    + tuple((f"moe.{kind}_proj.weight", f"moe.experts_{kind}", IDENTITY) for kind in ("gate", "up", "down")),
    router_bias=(("moe.router_bias", "moe.router_bias", IDENTITY),),
)
_HEAD = weights({"enorm": "enorm", "hnorm": "hnorm"}, PLUS_ONE) + weights({"eh_proj": "eh_proj"})
_VISION = {
    r"(model\.)?(vision_model|vit_large_projector|multi_modal_projector)\..*": "the vision tower; only text is loaded"
}
_ROUTER = "layers.{}.moe.gate.weight"
_ROUTER_BIAS = "layers.{}.moe.router_bias"
_OWN_EMBEDDING = "layers.{}.embed_tokens.weight"
_OWN_OUTPUT = "layers.{}.transformer.shared_head.output.weight"
_OWN_NORM = "layers.{}.transformer.shared_head.norm.weight"
"""Optional tensors, after the prefix; the layer's number stands in the braces."""

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
    """The config of a Hugging Face checkpoint, whose text model may be nested; see `FileFormat.read_config`."""
    text: Mapping[str, Any] = document.get("text_config") or document
    sparse = any(name.endswith(".moe.gate.weight") for name in tensors)
    required = _REQUIRED + (_REQUIRED_MOE if sparse else ())
    hf.need(text, required, where)
    for key, supported in _ONLY.items():
        hf.need_value(text, key, supported, where)
    prefix, num_layers = hf.trunk_prefix(tensors), text["num_hidden_layers"]
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
            sparse=has(_ROUTER, index),
            expert_limit=float(expert_limits[index] or 0.0),
            mlp_limit=float(mlp_limits[index] or 0.0),
        )

    def head(index: int) -> HeadConfig:
        return HeadConfig(
            layer=layer(index),
            own_embedding=has(_OWN_EMBEDDING, index),
            own_output=has(_OWN_OUTPUT, index),
            own_norm=has(_OWN_NORM, index),
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
            selection_bias=any(has(_ROUTER_BIAS, index) for index in range(blocks)),
            normalize=text.get("norm_expert_weight", True),
            scale=float(text.get("moe_router_scaling_factor", 1.0)),
        )
    formula = hf.read_formula(text.get("rope_scaling") or {}, where)
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


def config_to_hf(config: Step35Config) -> dict[str, Any]:
    """The config.json that describes such a model, with the keys of Step-3.5."""
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
        document["rope_scaling"] = hf.write_formula(formula)
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


def hf_rules(config: Step35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model; its `rope_factors` are computed by its `rope_formula`.
        names: the checkpoint's tensor names: they decide the prefix. Empty when writing (prefix `model.`).

    Raises:
        ConfigError: the model has rotary factors, but no known formula, by which alone config.json can state them.
    """
    prefix = hf.trunk_prefix(names)

    def head(index: int, own: HeadConfig) -> Iterator[Rule]:
        number, path = config.num_layers + index, f"mtp.heads_{index}."
        yield from layer_rules(config, own.layer, f"{prefix}layers.{number}.", f"{path}block.", _NAMES)
        yield from copies(_HEAD, f"{prefix}layers.{number}.", path)
        if own.own_norm:
            yield Copy(prefix + _OWN_NORM.format(number), f"{path}norm.weight", PLUS_ONE)
        if own.own_embedding:
            yield Copy(prefix + _OWN_EMBEDDING.format(number), f"{path}embed.weight")
        if own.own_output:
            yield Copy(prefix + _OWN_OUTPUT.format(number), f"{path}lm_head.weight")

    def rules() -> Iterator[Rule]:
        yield Copy(f"{prefix}embed_tokens.weight", "target.embed.weight")
        full = config.full
        yield from hf.divisor_rules(config.rope_factors, config.rope_formula, full.rope_theta, full.rope_width)
        for i, layer in enumerate(config.layers):
            yield from layer_rules(config, layer, f"{prefix}layers.{i}.", f"target.layers_{i}.", _NAMES)
        yield Copy(f"{prefix}norm.weight", "target.norm.weight", PLUS_ONE)
        yield Copy("lm_head.weight", "target.lm_head.weight")
        for index, own in enumerate(config.heads):
            yield from head(index, own)

    return RuleTable(tuple(rules()), {**_VISION, **hf.ROTARY_FREQUENCIES}, shapes(parameter_shapes, config))


HF = FileFormat(("step3p5", "step3p7"), config_from_hf, config_to_hf, hf_rules, head_count="num_nextn_predict_layers")
