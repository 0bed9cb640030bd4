"""Hugging Face checkpoints of Gemma 4.

Sources: transformers `models/gemma4/configuration_gemma4.py`, whose defaults are used for absent keys, and
`modeling_gemma4.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule, Split
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY
from checkpoints.source import TensorInfo
from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    LayerConfig,
    MoEConfig,
    interleaved_layer_types,
)
from specjax.models.gemma4.parameters import parameter_shapes
from specjax.models.parts import hf
from specjax.models.parts.names import Names, copies, shapes, weights

_LAYER: Names = (
    *weights(
        {
            "input_layernorm": "attn_norm",
            "self_attn.q_proj": "attention.q_proj",
            "self_attn.q_norm": "attention.q_norm",
            "self_attn.o_proj": "attention.o_proj",
            "post_attention_layernorm": "post_attn_norm",
            "pre_feedforward_layernorm": "mlp_norm",
            "mlp.gate_proj": "mlp.gate_proj",
            "mlp.up_proj": "mlp.up_proj",
            "mlp.down_proj": "mlp.down_proj",
            "post_feedforward_layernorm": "post_mlp_norm",
        }
    ),
    ("layer_scalar", "scale", IDENTITY),
)
_KEY = weights({"self_attn.k_proj": "attention.k_proj", "self_attn.k_norm": "attention.k_norm"})
_VALUE = weights({"self_attn.v_proj": "attention.v_proj"})
_PER_LAYER = weights(
    {
        "per_layer_input_gate": "per_layer_gate",
        "per_layer_projection": "per_layer_proj",
        "post_per_layer_input_norm": "post_per_layer_norm",
    }
)
_EXPERTS: Names = (
    *weights(
        {
            "router.proj": "experts.router",
            "pre_feedforward_layernorm_2": "experts_norm",
            "post_feedforward_layernorm_1": "post_dense_norm",
            "post_feedforward_layernorm_2": "post_experts_norm",
        }
    ),
    ("router.scale", "experts.router_scale", IDENTITY),
    ("router.per_expert_scale", "experts.expert_scale", IDENTITY),
    ("experts.down_proj", "experts.down", IDENTITY),
)
_IGNORED = {
    r"model\.(vision_tower|embed_vision)\..*": "the vision tower; only the text model is loaded",
    r"model\.(audio_tower|embed_audio)\..*": "the audio tower; only the text model is loaded",
    r".*self_attn\.v_norm\.weight": "the norm of V has no weight",
}
REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
_REQUIRED_MOE = ("num_experts", "top_k_experts", "moe_intermediate_size")
_ACTIVATION = "gelu_pytorch_tanh"
_DEFAULT_KV_HEADS = 4
_DEFAULT_HEAD_WIDTH, _DEFAULT_FULL_HEAD_WIDTH = 256, 512
_DEFAULT_WINDOW = 512
_DEFAULT_ROTARY_FACTOR = 0.25
_DEFAULT_THETA: Mapping[str, float] = {FULL_ATTENTION: 1e6, SLIDING_ATTENTION: 1e4}


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4Config:
    """The config of a Hugging Face checkpoint, whose text model may be nested; see `FileFormat.read_config`."""
    del tensors
    text: Mapping[str, Any] = document.get("text_config") or document
    has_experts = text.get("enable_moe_block", False)
    check_text(text, REQUIRED + (_REQUIRED_MOE if has_experts else ()), where)
    layer_types = layer_types_of(text)
    sliding, full = attention_of(text, layer_types)
    return Gemma4Config(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        layer_types=layer_types,
        num_heads=text["num_attention_heads"],
        mlp_width=text["intermediate_size"],
        sliding=sliding,
        full=full,
        full_value_is_key=text.get("attention_k_eq_v", False),
        shared_kv_layers=text.get("num_kv_shared_layers", 0),
        wide_shared_mlp=text.get("use_double_wide_mlp", False),
        per_layer_width=text.get("hidden_size_per_layer_input", _DEFAULT_HEAD_WIDTH) or 0,
        moe=MoEConfig(*(text[key] for key in _REQUIRED_MOE)) if has_experts else None,
        logit_cap=text.get("final_logit_softcapping"),
        norm_eps=text.get("rms_norm_eps", 1e-6),
        context_length=text.get("max_position_embeddings", 131072),
        tied_embeddings=document.get("tie_word_embeddings", text.get("tie_word_embeddings", True)),
    )


def config_to_hf(config: Gemma4Config) -> dict[str, Any]:
    """The config.json of the text-only class."""
    document: dict[str, Any] = {
        "architectures": ["Gemma4ForCausalLM"],
        **text_document(config.layer_types, config.num_heads, config.sliding, config.full, config.full_value_is_key),
        "vocab_size": config.vocab_size,
        "vocab_size_per_layer_input": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": config.mlp_width,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.context_length,
        "tie_word_embeddings": config.tied_embeddings,
        "final_logit_softcapping": config.logit_cap,
        "num_kv_shared_layers": config.shared_kv_layers,
        "use_double_wide_mlp": config.wide_shared_mlp,
        "hidden_size_per_layer_input": config.per_layer_width,
        "enable_moe_block": config.moe is not None,
    }
    if config.moe is not None:
        document["num_experts"] = config.moe.num_experts
        document["top_k_experts"] = config.moe.experts_per_token
        document["moe_intermediate_size"] = config.moe.expert_width
    return document


def check_text(text: Mapping[str, Any], required: tuple[str, ...], where: str) -> None:
    """Raise `ConfigError` unless the keys are there and ask for nothing that this family is not built with."""
    hf.need(text, required, where)
    hf.need_value(text, "hidden_activation", _ACTIVATION, where)
    if text.get("use_bidirectional_attention") == "all":
        raise ConfigError(f"{where}: use_bidirectional_attention is 'all'; only causal text models can be decoded")
    if text.get("attention_bias", False):
        raise ConfigError(f"{where}: attention_bias is set; this family is built without biases")


def layer_types_of(text: Mapping[str, Any]) -> tuple[str, ...]:
    """The kind of each layer; the last one is full attention whatever the file says, as in transformers."""
    num_layers = text["num_hidden_layers"]
    layer_types = tuple(text.get("layer_types") or interleaved_layer_types(num_layers))
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries, num_hidden_layers is {num_layers}")
    return (*layer_types[:-1], FULL_ATTENTION)


def attention_of(text: Mapping[str, Any], layer_types: tuple[str, ...]) -> tuple[AttentionConfig, AttentionConfig]:
    """What the sliding and what the full layers share."""
    rope = text.get("rope_parameters") or {}
    kinds = {kind: {"rope_type": "default", **rope.get(kind, {})} for kind in _DEFAULT_THETA}
    if FULL_ATTENTION not in rope:
        kinds[FULL_ATTENTION]["rope_type"] = "proportional"
    types = kinds[SLIDING_ATTENTION]["rope_type"], kinds[FULL_ATTENTION]["rope_type"]
    if types != ("default", "proportional") or any(kind.get("factor", 1.0) != 1.0 for kind in kinds.values()):
        raise ValueError(f"rope_parameters {rope} are not supported: sliding layers must be 'default', full ones"
                         " 'proportional', neither with a factor")  # fmt: skip
    theta = {kind: float(kinds[kind].get("rope_theta", default)) for kind, default in _DEFAULT_THETA.items()}
    kv_heads, width = text.get("num_key_value_heads", _DEFAULT_KV_HEADS), text.get("head_dim", _DEFAULT_HEAD_WIDTH)
    full_width = text.get("global_head_dim") or _DEFAULT_FULL_HEAD_WIDTH
    full_kv_heads = (text.get("num_global_key_value_heads") if text.get("attention_k_eq_v") else None) or kv_heads
    overrides = text.get("per_layer_config") or {}
    if overrides:
        own = overrides.get(str(layer_types.index(FULL_ATTENTION)), {})
        full_width, full_kv_heads = own.get("head_dim", width), own.get("num_key_value_heads", kv_heads)
    factor = kinds[FULL_ATTENTION].get("partial_rotary_factor", _DEFAULT_ROTARY_FACTOR)
    sliding = AttentionConfig(
        kv_heads, width, theta[SLIDING_ATTENTION], width, text.get("sliding_window", _DEFAULT_WINDOW)
    )
    return sliding, AttentionConfig(full_kv_heads, full_width, theta[FULL_ATTENTION], 2 * int(factor * full_width // 2))


def text_document(
    layer_types: tuple[str, ...],
    num_heads: int,
    sliding: AttentionConfig,
    full: AttentionConfig,
    full_value_is_key: bool,
) -> dict[str, Any]:
    """The keys of a text config that describe its attention layers.

    Raises:
        ConfigError: only models whose full layers have no V projection can have other KV heads in them.
    """
    if full.num_kv_heads != sliding.num_kv_heads and not full_value_is_key:
        raise ConfigError(
            f"config.json cannot give full layers {full.num_kv_heads} KV heads and sliding ones"
            f" {sliding.num_kv_heads}: they differ only where full layers take V from the K projection"
        )
    return {
        "model_type": "gemma4_text",
        "num_hidden_layers": len(layer_types),
        "layer_types": list(layer_types),
        "num_attention_heads": num_heads,
        "num_key_value_heads": sliding.num_kv_heads,
        "num_global_key_value_heads": full.num_kv_heads if full_value_is_key else None,
        "head_dim": sliding.head_width,
        "global_head_dim": full.head_width,
        "attention_k_eq_v": full_value_is_key,
        "attention_bias": False,
        "sliding_window": sliding.window,
        "hidden_activation": _ACTIVATION,
        "rope_parameters": {
            SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": sliding.rope_theta},
            FULL_ATTENTION: {
                "rope_type": "proportional",
                "rope_theta": full.rope_theta,
                "partial_rotary_factor": full.rope_width / full.head_width,
            },
        },
    }


def hf_layer(config: LayerConfig, block: str, path: str) -> Iterator[Rule]:
    """Rules for one layer of a Hugging Face checkpoint."""
    yield from copies(_LAYER, block, path)
    if config.own_kv:
        yield from copies(_KEY, block, path)
        if not config.value_is_key:
            yield from copies(_VALUE, block, path)
    if config.per_layer_width:
        yield from copies(_PER_LAYER, block, path)
    if config.moe is not None:
        yield from copies(_EXPERTS, block, path)
        yield Split(f"{block}experts.gate_up_proj", (f"{path}experts.gate", f"{path}experts.up"), axis=1)


def hf_rules(config: Gemma4Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide between the prefix `model.` of the text-only class and
            `model.language_model.` of the conditional-generation one. Empty when writing (`model.`).
    """
    prefix = hf.trunk_prefix(names)

    def rules() -> Iterator[Rule]:
        yield Copy(f"{prefix}embed_tokens.weight", "target.embed.weight")
        if config.per_layer_width:
            yield Copy(f"{prefix}embed_tokens_per_layer.weight", "target.per_layer_embed.weight")
            yield Copy(f"{prefix}per_layer_model_projection.weight", "target.per_layer_proj.weight")
            yield Copy(f"{prefix}per_layer_projection_norm.weight", "target.per_layer_norm.weight")
        for i in range(config.num_layers):
            yield from hf_layer(config.layer(i), f"{prefix}layers.{i}.", f"target.layers_{i}.")
        yield Copy(f"{prefix}norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")

    ignored = {**_IGNORED, **hf.ROTARY_FREQUENCIES, **(hf.REPEATED_HEAD if config.tied_embeddings else {})}
    for i in range(config.num_caches, config.num_layers):
        ignored[rf"{prefix}layers\.{i}\.self_attn\.(k|v)_(proj|norm)\.weight"] = (
            "the layer reads the keys and values of an earlier one"
        )
    return RuleTable(tuple(rules()), ignored, shapes(parameter_shapes, config))


HF = FileFormat(("gemma4", "gemma4_text"), config_from_hf, config_to_hf, hf_rules)
