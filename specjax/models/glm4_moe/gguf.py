"""GGUF files of GLM-4.5 and its successors.

Sources: llama.cpp `src/models/glm4-moe.cpp` (what is read, and its defaults), `conversion/glm.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY
from checkpoints.source import TensorInfo
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.parameters import parameter_shapes
from specjax.models.glm4_moe.rules import LayerNames, layer_rules
from specjax.models.parts.declared_heads import one_head
from specjax.models.parts.gguf import (
    ATTENTION,
    EXPERTS,
    EXPERTS_GATE_UP,
    HEAD_EMBEDDING,
    HEAD_NORM,
    HEAD_OUTPUT,
    MLP,
    QK_NORMS,
    SHARED_EXPERT,
    Keys,
    head_rules,
    uniform_keys,
)
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.names import copies, shapes, weights

_NAMES = LayerNames(
    common=ATTENTION + weights({"attn_norm": "attn_norm", "post_attention_norm": "mlp_norm"}),
    qk_norms=QK_NORMS,
    biases=tuple((f"attn_{x}.bias", f"attention.{x}_bias", IDENTITY) for x in "qkv"),
    dense=MLP,
    router_bias=(("exp_probs_b.bias", "moe.router_bias", IDENTITY),),
    experts=partial(copies, EXPERTS + EXPERTS_GATE_UP + SHARED_EXPERT),
)
_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
)
_DEFAULT_ROPE_THETA = 10000.0
_SIGMOID = 2
"""llama.cpp's number of the gating function; it takes 0, none, for this one."""


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Glm4MoeConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = Keys(metadata, where)
    keys.need(*_REQUIRED)
    keys.need_no_rope_scaling()
    if keys.get("rope.dimension_sections") is not None:
        raise ConfigError(f"{where}: rope.dimension_sections: this is the text model of GLM-4.5V, not supported")
    if (gating := keys.get("expert_gating_func", 0) or _SIGMOID) != _SIGMOID:
        raise ConfigError(
            f"{where}: expert_gating_func {gating!r} is not supported for this architecture, only {_SIGMOID}"
        )
    declared = keys.get("nextn_predict_layers", 0)
    num_layers = keys.get("block_count") - declared
    width, num_heads = keys.get("embedding_length"), keys.uniform("attention.head_count")
    head_width, expert_width = keys.get("attention.key_length", width // num_heads), keys.get(_REQUIRED[-1])
    mtp_layers = one_head(declared, f"blk.{num_layers}.", tensors, where)
    return Glm4MoeConfig(
        vocab_size=keys.vocab_size(tensors),
        num_layers=num_layers,
        dense_layers=keys.get("leading_dense_block_count", 0),
        width=width,
        mlp_width=keys.uniform("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.uniform("attention.head_count_kv", num_heads),
        head_width=head_width,
        rope_width=keys.get("rope.dimension_count", head_width),
        rope_theta=keys.get("rope.freq_base", _DEFAULT_ROPE_THETA),
        moe=MoEConfig(
            num_experts=keys.get("expert_count"),
            experts_per_token=keys.get("expert_used_count"),
            expert_width=expert_width,
            shared_expert_width=expert_width * keys.get("expert_shared_count", 0),
            selection_bias=any(name.endswith(".exp_probs_b.bias") for name in tensors),
            normalize=keys.get("expert_weights_norm", False),
            scale=keys.number("expert_weights_scale", 0.0) or 1.0,
            groups=keys.get("expert_group_count", 0) or 1,
            groups_per_token=keys.get("expert_group_used_count", 0) or 1,
        ),
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=keys.get("context_length"),
        tied_embeddings="output.weight" not in tensors,
        mtp_layers=mtp_layers,
        mtp_own_embedding=mtp_layers > 0 and HEAD_EMBEDDING.format(num_layers) in tensors,
        mtp_own_output=mtp_layers > 0 and HEAD_OUTPUT.format(num_layers) in tensors,
        mtp_own_norm=mtp_layers == 0 or HEAD_NORM.format(num_layers) in tensors,
    )


def config_to_gguf(config: Glm4MoeConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    moe = config.moe
    keys = {
        "block_count": config.num_layers + config.mtp_layers,
        **uniform_keys(config),
        "feed_forward_length": config.mlp_width,
        "rope.dimension_count": config.rope_width,
        "leading_dense_block_count": config.dense_layers,
        "expert_count": moe.num_experts,
        "expert_used_count": moe.experts_per_token,
        "expert_feed_forward_length": moe.expert_width,
        "expert_shared_count": moe.shared_expert_width // moe.expert_width,
        "expert_group_count": moe.groups,
        "expert_group_used_count": moe.groups_per_token,
        "expert_gating_func": _SIGMOID,
        "expert_weights_norm": moe.normalize,
        "expert_weights_scale": float(moe.scale),
        "nextn_predict_layers": config.mtp_layers,
    }
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


def gguf_rules(config: Glm4MoeConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; `names` decide nothing here: what is optional is in the config."""
    del names

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        for i, sparse in enumerate(config.sparse):
            yield from layer_rules(config, _NAMES, f"blk.{i}.", f"target.layers_{i}.", sparse=sparse)
        yield Copy("output_norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("output.weight", "target.lm_head.weight")
        if config.mtp_layers:
            i = config.num_layers
            yield from layer_rules(config, _NAMES, f"blk.{i}.", "mtp.block.", sparse=True)
            yield from head_rules(
                i,
                "mtp.",
                own_norm=config.mtp_own_norm,
                own_embedding=config.mtp_own_embedding,
                own_output=config.mtp_own_output,
            )

    return RuleTable(tuple(rules()), {}, shapes(parameter_shapes, config))


GGUF = FileFormat(("glm4moe",), config_from_gguf, config_to_gguf, gguf_rules, head_count="nextn_predict_layers")
