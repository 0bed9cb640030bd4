"""Hugging Face checkpoints of GLM-4.5 and its successors.

Sources: transformers `models/glm4_moe`, whose defaults are used for absent keys; the names of the MTP layer's tensors
as `conversion/glm.py` of llama.cpp takes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule, Split, Stack
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY
from checkpoints.source import TensorInfo
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.parameters import parameter_shapes
from specjax.models.glm4_moe.rules import LayerNames, layer_rules
from specjax.models.parts import hf
from specjax.models.parts.declared_heads import one_head
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.names import copies, shapes, weights

_SPARSE = weights(
    {
        "mlp.gate": "moe.router",
        **{f"mlp.shared_experts.{x}_proj": f"moe.shared.{x}_proj" for x in ("gate", "up", "down")},
    }
)
_HEAD = weights({"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj"})
_OWN_EMBEDDING = "embed_tokens.weight"
_OWN_OUTPUT = "shared_head.head.weight"
_OWN_NORM = "shared_head.norm.weight"
"""Optional tensors of the MTP layer, after its prefix."""
_REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "n_routed_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_ROTARY_FACTOR = 0.5
_LAYER = "model.layers.{}."


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Glm4MoeConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    text: Mapping[str, Any] = document.get("text_config") or document
    hf.need(text, _REQUIRED, where)
    hf.need_value(text, "hidden_act", "silu", where)
    rope = text.get("rope_parameters") or text.get("rope_scaling") or {}
    hf.rope_type(rope, where, "default")
    num_heads, expert_width = text["num_attention_heads"], text["moe_intermediate_size"]
    head_width = text.get("head_dim") or text["hidden_size"] // num_heads
    factor = rope.get("partial_rotary_factor", text.get("partial_rotary_factor", _DEFAULT_ROTARY_FACTOR))
    block = _LAYER.format(text["num_hidden_layers"])
    declared = text.get("num_nextn_predict_layers") or int(any(name.startswith(block) for name in tensors))
    mtp_layers = one_head(declared, block, tensors, where)
    return Glm4MoeConfig(
        vocab_size=text["vocab_size"],
        num_layers=text["num_hidden_layers"],
        dense_layers=text.get("first_k_dense_replace", 1),
        width=text["hidden_size"],
        mlp_width=text["intermediate_size"],
        num_heads=num_heads,
        num_kv_heads=text["num_key_value_heads"],
        head_width=head_width,
        rope_width=int(head_width * factor + 1e-6),
        rope_theta=float(rope.get("rope_theta", text.get("rope_theta", _DEFAULT_ROPE_THETA))),
        moe=MoEConfig(
            num_experts=text["n_routed_experts"],
            experts_per_token=text["num_experts_per_tok"],
            expert_width=expert_width,
            shared_expert_width=expert_width * text.get("n_shared_experts", 1),
            normalize=text.get("norm_topk_prob", True),
            scale=text.get("routed_scaling_factor", 1.0),
            groups=text.get("n_group", 1),
            groups_per_token=text.get("topk_group", 1),
        ),
        qk_norm=text.get("use_qk_norm", False),
        attention_bias=text.get("attention_bias", False),
        norm_eps=text.get("rms_norm_eps", 1e-5),
        context_length=text.get("max_position_embeddings", 131072),
        tied_embeddings=text.get("tie_word_embeddings", False),
        mtp_layers=mtp_layers,
        mtp_own_embedding=block + _OWN_EMBEDDING in tensors,
        mtp_own_output=block + _OWN_OUTPUT in tensors,
        mtp_own_norm=mtp_layers == 0 or block + _OWN_NORM in tensors,
    )


def config_to_hf(config: Glm4MoeConfig) -> dict[str, Any]:
    """The config.json in the form of the released ones."""
    moe = config.moe
    return {
        "architectures": ["Glm4MoeForCausalLM"],
        "model_type": "glm4_moe",
        **hf.uniform_document(config),
        "intermediate_size": config.mlp_width,
        "first_k_dense_replace": config.dense_layers,
        "partial_rotary_factor": config.rope_width / config.head_width,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
        "attention_bias": config.attention_bias,
        "use_qk_norm": config.qk_norm,
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "moe_intermediate_size": moe.expert_width,
        "n_shared_experts": moe.shared_expert_width // moe.expert_width,
        "norm_topk_prob": moe.normalize,
        "routed_scaling_factor": moe.scale,
        "n_group": moe.groups,
        "topk_group": moe.groups_per_token,
        "num_nextn_predict_layers": config.mtp_layers,
    }


def hf_rules(config: Glm4MoeConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide between fused experts and one tensor per expert. Empty when
            writing (one tensor per expert, as released).
    """

    def experts(block: str, path: str) -> Iterator[Rule]:
        yield from copies(_SPARSE, block, path)
        prefix = f"{block}mlp.experts."
        if (fused := f"{prefix}gate_up_proj") in names:
            yield Split(fused, (f"{path}moe.experts_gate", f"{path}moe.experts_up"), axis=1)
            yield Copy(f"{prefix}down_proj", f"{path}moe.experts_down")
            return
        for kind in ("gate", "up", "down"):
            sources = tuple(f"{prefix}{expert}.{kind}_proj.weight" for expert in range(config.moe.num_experts))
            yield Stack(sources, f"{path}moe.experts_{kind}")

    layer = LayerNames(
        common=hf.ATTENTION + weights({"input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm"}),
        qk_norms=weights(hf.QK_NORMS),
        biases=tuple((f"self_attn.{x}_proj.bias", f"attention.{x}_bias", IDENTITY) for x in "qkv"),
        dense=hf.MLP,
        router_bias=(("mlp.gate.e_score_correction_bias", "moe.router_bias", IDENTITY),),
        experts=experts,
    )

    def rules() -> Iterator[Rule]:
        yield Copy("model.embed_tokens.weight", "target.embed.weight")
        for i, sparse in enumerate(config.sparse):
            yield from layer_rules(config, layer, _LAYER.format(i), f"target.layers_{i}.", sparse=sparse)
        yield Copy("model.norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")
        if config.mtp_layers:
            block = _LAYER.format(config.num_layers)
            yield from layer_rules(config, layer, block, "mtp.block.", sparse=True)
            yield from copies(_HEAD, block, "mtp.")
            if config.mtp_own_norm:
                yield Copy(block + _OWN_NORM, "mtp.norm.weight")
            if config.mtp_own_embedding:
                yield Copy(block + _OWN_EMBEDDING, "mtp.embed.weight")
            if config.mtp_own_output:
                yield Copy(block + _OWN_OUTPUT, "mtp.lm_head.weight")

    ignored = {**hf.ROTARY_FREQUENCIES, **(hf.REPEATED_HEAD if config.tied_embeddings else {})}
    return RuleTable(tuple(rules()), ignored, shapes(parameter_shapes, config))


HF = FileFormat(("glm4_moe",), config_from_hf, config_to_hf, hf_rules, head_count="num_nextn_predict_layers")
