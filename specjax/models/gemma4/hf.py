"""Hugging Face checkpoints of Gemma 4.

Sources: transformers `models/gemma4/configuration_gemma4.py`, whose defaults are used for absent keys, and
`modeling_gemma4.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Split, copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.gemma4.assistant_config import Gemma4AssistantConfig
from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    MoEConfig,
    interleaved_layer_types,
)
from specjax.models.gemma4.parameters import parameter_shapes
from specjax.models.parts import hf
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table

LAYER = (
    *weights(
        {
            "input_layernorm": "attn_norm",
            "post_attention_layernorm": "post_attn_norm",
            "pre_feedforward_layernorm": "mlp_norm",
            "post_feedforward_layernorm": "post_mlp_norm",
            "per_layer_input_gate": "per_layer_gate",
            "per_layer_projection": "per_layer_proj",
            "post_per_layer_input_norm": "post_per_layer_norm",
            "router.proj": "experts.router",
            "pre_feedforward_layernorm_2": "experts_norm",
            "post_feedforward_layernorm_1": "post_dense_norm",
            "post_feedforward_layernorm_2": "post_experts_norm",
            **hf.QK_NORMS,
        }
    ),
    *hf.ATTENTION,
    *hf.MLP,
    *copies(
        {
            "layer_scalar": "scale",
            "router.scale": "experts.router_scale",
            "router.per_expert_scale": "experts.expert_scale",
            "experts.down_proj": "experts.down",
        }
    ),
    Split(("experts.gate_up_proj",), ("experts.gate", "experts.up"), axis=1),
)
_PER_LAYER = {
    "embed_tokens_per_layer": "target.per_layer_embed",
    "per_layer_model_projection": "target.per_layer_proj",
    "per_layer_projection_norm": "target.per_layer_norm",
}
_IGNORED = {
    r"model\.(vision_tower|embed_vision)\..*": "the vision tower; only the text model is loaded",
    r"model\.(audio_tower|embed_audio)\..*": "the audio tower; only the text model is loaded",
    r".*self_attn\.v_norm\.weight": "the norm of V has no weight",
}
COMMON = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "num_heads": "num_attention_heads",
    "mlp_width": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}
COMMON_DEFAULTS = {"norm_eps": 1e-6, "context_length": 131072}
"""Keys of targets and of assistants, and what absent ones mean."""
_FIELDS = Fields(
    Gemma4Config,
    {
        **COMMON,
        "full_value_is_key": "attention_k_eq_v",
        "shared_kv_layers": "num_kv_shared_layers",
        "wide_shared_mlp": "use_double_wide_mlp",
        "logit_cap": "final_logit_softcapping",
    },
    {
        **COMMON_DEFAULTS,
        "full_value_is_key": False,
        "shared_kv_layers": 0,
        "wide_shared_mlp": False,
        "logit_cap": None,
    },
)
_EXPERTS = Fields(
    MoEConfig,
    {"num_experts": "num_experts", "experts_per_token": "top_k_experts", "expert_width": "moe_intermediate_size"},
)
PER_LAYER_WIDTH, TIED = "hidden_size_per_layer_input", "tie_word_embeddings"
_ACTIVATION = "gelu_pytorch_tanh"
_DEFAULT_KV_HEADS = 4
_DEFAULT_HEAD_WIDTH, _DEFAULT_FULL_HEAD_WIDTH = 256, 512
_DEFAULT_WINDOW = 512
_ROTARY_FACTOR, _DEFAULT_ROTARY_FACTOR = "partial_rotary_factor", 0.25
_DEFAULT_THETA: Mapping[str, float] = {FULL_ATTENTION: 1e6, SLIDING_ATTENTION: 1e4}


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4Config:
    """The config of a Hugging Face checkpoint, whose text model may be nested; see `FileFormat.read_config`."""
    text = hf.text_of(document)
    has_experts = text.get("enable_moe_block", False)
    return Gemma4Config(
        **read_common(text, _FIELDS, where, *(_EXPERTS.required if has_experts else ())),
        per_layer_width=text.get(PER_LAYER_WIDTH, _DEFAULT_HEAD_WIDTH) or 0,
        moe=MoEConfig(**_EXPERTS.read(text.get)) if has_experts else None,
        tied_embeddings=hf.is_tied(document.get(TIED, text.get(TIED, True)), tensors),
    )


def config_to_hf(config: Gemma4Config) -> dict[str, Any]:
    """The config.json of the text-only class."""
    return {
        "architectures": ["Gemma4ForCausalLM"],
        **common_document(config, _FIELDS, value_is_key=config.full_value_is_key),
        "vocab_size_per_layer_input": config.vocab_size,
        PER_LAYER_WIDTH: config.per_layer_width,
        TIED: config.tied_embeddings,
        "enable_moe_block": config.moe is not None,
        **({} if config.moe is None else _EXPERTS.write(config.moe)),
    }


def read_common(text: Mapping[str, Any], fields: Fields, where: str, *needed: str) -> dict[str, Any]:
    """The fields that targets and assistants have in common.

    Args:
        text: the part of config.json about the text model.
        fields: `COMMON` and others.
        where: the file, for messages.
        needed: further keys that must be there.

    Raises:
        ConfigError: keys are absent, or ask for something that this family is not built with.
    """
    hf.need(text, ("num_hidden_layers", *fields.required, *needed), where)
    hf.need_value(text, "hidden_activation", _ACTIVATION, where)
    hf.need_causal(text, where)
    if text.get("use_bidirectional_attention") == "all":
        raise ConfigError(f"{where}: use_bidirectional_attention is 'all'; only causal text models can be decoded")
    if text.get("attention_bias", False):
        raise ConfigError(f"{where}: attention_bias is set; this family is built without biases")
    layer_types = _layer_types(text)
    sliding, full = _attention(text, layer_types)
    return {**fields.read(text.get), "layer_types": layer_types, "sliding": sliding, "full": full}


def _layer_types(text: Mapping[str, Any]) -> tuple[str, ...]:
    """The kind of each layer; the last one is full attention whatever the file says, as in transformers."""
    num_layers = text["num_hidden_layers"]
    layer_types = tuple(text.get("layer_types") or interleaved_layer_types(num_layers))
    if len(layer_types) != num_layers:
        raise ValueError(f"layer_types has {len(layer_types)} entries, num_hidden_layers is {num_layers}")
    return (*layer_types[:-1], FULL_ATTENTION)


def _attention(text: Mapping[str, Any], layer_types: tuple[str, ...]) -> tuple[AttentionConfig, AttentionConfig]:
    """What the sliding and what the full layers share."""
    rope = text.get("rope_parameters") or {}
    kinds = {kind: {"rope_type": "default", **rope.get(kind, {})} for kind in _DEFAULT_THETA}
    if FULL_ATTENTION not in rope:
        kinds[FULL_ATTENTION] |= {"rope_type": "proportional", _ROTARY_FACTOR: _DEFAULT_ROTARY_FACTOR}
    types = kinds[SLIDING_ATTENTION]["rope_type"], kinds[FULL_ATTENTION]["rope_type"]
    if types != ("default", "proportional") or any(kind.get("factor", 1.0) != 1.0 for kind in kinds.values()):
        raise ValueError(f"rope_parameters {rope} are not supported: sliding layers must be 'default', full ones"
                         " 'proportional', neither with a factor")  # fmt: skip
    theta = {kind: float(kinds[kind].get("rope_theta", default)) for kind, default in _DEFAULT_THETA.items()}
    kv_heads, width = text.get("num_key_value_heads", _DEFAULT_KV_HEADS), text.get("head_dim", _DEFAULT_HEAD_WIDTH)
    full_width = text.get("global_head_dim") or _DEFAULT_FULL_HEAD_WIDTH
    full_kv_heads = (text.get("num_global_key_value_heads") if text.get("attention_k_eq_v") else None) or kv_heads
    overrides = text.get("per_layer_config")
    if overrides is not None:  # without any, all layers are alike
        own = overrides.get(str(layer_types.index(FULL_ATTENTION)), {})
        full_width, full_kv_heads = own.get("head_dim", width), own.get("num_key_value_heads", kv_heads)
    factor = kinds[FULL_ATTENTION].get(_ROTARY_FACTOR, 1.0)
    sliding = AttentionConfig(
        kv_heads, width, theta[SLIDING_ATTENTION], width, text.get("sliding_window", _DEFAULT_WINDOW)
    )
    return sliding, AttentionConfig(full_kv_heads, full_width, theta[FULL_ATTENTION], 2 * int(factor * full_width // 2))


def common_document(
    config: Gemma4Config | Gemma4AssistantConfig, fields: Fields, *, value_is_key: bool
) -> dict[str, Any]:
    """The keys that `read_common` reads; `value_is_key` as in `Gemma4Config.full_value_is_key`.

    Raises:
        ConfigError: only models whose full layers have no V projection can have other KV heads in them.
    """
    full, sliding = config.full, config.sliding
    if full.num_kv_heads != sliding.num_kv_heads and not value_is_key:
        raise ConfigError(
            f"config.json cannot give full layers {full.num_kv_heads} KV heads and sliding ones"
            f" {sliding.num_kv_heads}: they differ only where full layers take V from the K projection"
        )
    return {
        "model_type": "gemma4_text",
        **fields.write(config),
        "num_hidden_layers": len(config.layer_types),
        "layer_types": list(config.layer_types),
        "num_key_value_heads": sliding.num_kv_heads,
        "num_global_key_value_heads": full.num_kv_heads if value_is_key else None,
        "head_dim": sliding.head_width,
        "global_head_dim": full.head_width,
        "attention_k_eq_v": value_is_key,
        "attention_bias": False,
        "sliding_window": sliding.window,
        "hidden_activation": _ACTIVATION,
        "rope_parameters": {
            SLIDING_ATTENTION: {"rope_type": "default", "rope_theta": sliding.rope_theta},
            FULL_ATTENTION: {
                "rope_type": "proportional",
                "rope_theta": full.rope_theta,
                _ROTARY_FACTOR: full.rope_width / full.head_width,
            },
        },
    }


def hf_rules(config: Gemma4Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide between the prefix `model.` of the text-only class and
            `model.language_model.` of the conditional-generation one. Empty when writing (`model.`).
    """
    prefix = hf.trunk_prefix(names)
    per_layer = weights({f"{prefix}{source}": path for source, path in _PER_LAYER.items()})
    dead = {
        rf"{prefix}layers\.{i}\.self_attn\.(k|v)_(proj|norm)\.weight": "the layer reads the keys and values of an"
        " earlier one"
        for i in range(config.num_caches, config.num_layers)
    }
    rules = (*per_layer, *hf.trunk(LAYER, config.num_layers, prefix))
    return rule_table(
        parameter_shapes, config, rules, names, {**_IGNORED, **hf.ignored(tied=config.tied_embeddings), **dead}
    )


HF = FileFormat(("gemma4", "gemma4_text"), config_from_hf, config_to_hf, hf_rules)
