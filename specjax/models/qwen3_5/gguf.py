"""GGUF files of the Qwen3.5 family.

Sources: llama.cpp `src/models/qwen35*.cpp` (what is read, and its defaults), `conversion/qwen.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule, Split
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY
from checkpoints.source import TensorInfo
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
from specjax.models.parts.names import LayerRules, Names, copies, shapes, weights
from specjax.models.qwen3_5.config import FULL_ATTENTION, LINEAR_ATTENTION, MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.parameters import parameter_shapes

_LAYER = weights({"attn_norm": "attn_norm", "post_attention_norm": "mlp_norm"})
PROJECTIONS = weights({"attn_qkv": "delta_net.qkv_proj", "attn_gate": "delta_net.z_proj"})
RECURRENCE: Names = (
    ("ssm_conv1d.weight", "delta_net.conv.weight", IDENTITY),
    ("ssm_a", "delta_net.a", IDENTITY),
    ("ssm_dt.bias", "delta_net.dt_bias", IDENTITY),
    ("ssm_norm.weight", "delta_net.norm.weight", IDENTITY),
    ("ssm_out.weight", "delta_net.out_proj.weight", IDENTITY),
)
"""What gated delta nets of all families of this architecture have: two projections, and what comes after them."""
_DELTA_NET = (
    PROJECTIONS + weights({"ssm_beta": "delta_net.beta_proj", "ssm_alpha": "delta_net.alpha_proj"}) + RECURRENCE
)
_MOE = EXPERTS + SHARED_EXPERT + weights({"ffn_gate_inp_shexp": "moe.shared_gate"})
_IGNORED = {r"rope_freqs\.weight": "rotary frequencies follow from the config"}
_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
    "ssm.conv_kernel",
    "ssm.inner_size",
    "ssm.state_size",
    "ssm.time_step_rank",
    "ssm.group_count",
)
_SECTIONS = "rope.dimension_sections"
_REQUIRED_MOE = ("expert_count", "expert_used_count")
_DEFAULT_ROPE_THETA = 10000.0
_DEFAULT_INTERVAL = 4


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen35Config:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = Keys(metadata, where)
    settings = read_settings(keys, tensors, _SECTIONS, sparse=keys.arch == "qwen35moe")
    return Qwen35Config(**settings, rope_sections=(*keys.get(_SECTIONS), 0)[:4])


def read_settings(keys: Keys, tensors: Mapping[str, TensorInfo], *needed: str, sparse: bool) -> dict[str, Any]:
    """The settings of a file, all but `rope_sections`; for the families of this architecture.

    Args:
        keys, tensors: the file's metadata and its tensor table.
        needed: keys that must be there, beside those that are read here.
        sparse: whether it has experts.
    """
    keys.need(*_REQUIRED, *needed, *(_REQUIRED_MOE if sparse else ()))
    keys.need_no_rope_scaling()
    width, num_heads = keys.get("embedding_length"), keys.uniform("attention.head_count")
    head_width = keys.get("attention.key_length", width // num_heads)
    declared_mtp = keys.get("nextn_predict_layers", 0)
    num_layers = keys.get("block_count") - declared_mtp
    num_value_heads = keys.get("ssm.time_step_rank")
    mlp_width = keys.uniform("feed_forward_length", 0)
    mtp_layers = one_head(declared_mtp, f"blk.{num_layers}.", tensors, keys.where)
    return {
        "vocab_size": keys.vocab_size(tensors),
        "width": width,
        "layer_types": _layer_types(keys, num_layers),
        "mlp_width": mlp_width,
        "num_heads": num_heads,
        "num_kv_heads": keys.uniform("attention.head_count_kv", num_heads),
        "head_width": head_width,
        "rope_width": keys.get("rope.dimension_count", head_width),
        "rope_theta": keys.get("rope.freq_base", _DEFAULT_ROPE_THETA),
        "conv_width": keys.get("ssm.conv_kernel"),
        "linear_key_heads": keys.get("ssm.group_count"),
        "linear_value_heads": num_value_heads,
        "linear_key_width": keys.get("ssm.state_size"),
        "linear_value_width": keys.get("ssm.inner_size") // num_value_heads,
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "context_length": keys.get("context_length"),
        "tied_embeddings": "output.weight" not in tensors,
        "mtp_layers": mtp_layers,
        "mtp_own_embedding": mtp_layers > 0 and HEAD_EMBEDDING.format(num_layers) in tensors,
        "mtp_own_output": mtp_layers > 0 and HEAD_OUTPUT.format(num_layers) in tensors,
        "mtp_own_norm": mtp_layers == 0 or HEAD_NORM.format(num_layers) in tensors,
        "moe": _experts(keys, mlp_width) if sparse else None,
    }


def _layer_types(keys: Keys, num_layers: int) -> tuple[str, ...]:
    recurrent = keys.get("attention.recurrent_layers")
    if recurrent is None:
        return hybrid_layer_types(num_layers, keys.get("full_attention_interval", _DEFAULT_INTERVAL))
    if len(recurrent) < num_layers:
        raise ValueError(f"attention.recurrent_layers has {len(recurrent)} entries for {num_layers} layers")
    return tuple(LINEAR_ATTENTION if r else FULL_ATTENTION for r in recurrent[:num_layers])


def _experts(keys: Keys, mlp_width: int) -> MoEConfig:
    used = keys.get("expert_used_count")
    return MoEConfig(
        num_experts=keys.get("expert_count"),
        experts_per_token=used,
        expert_width=keys.uniform("expert_feed_forward_length", 0) or mlp_width // used,
        shared_expert_width=keys.get("expert_shared_feed_forward_length", 0) or mlp_width,
    )


def config_to_gguf(config: Qwen35Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    return write_settings(config) | {f"{config.architecture}.{_SECTIONS}": list(config.rope_sections)}


def write_settings(config: Qwen35Config) -> dict[str, Any]:
    """The metadata for all but `rope_sections`: what `read_settings` reads.

    Raises:
        ConfigError: GGUF cannot express it (key and value widths of the delta nets differ).
    """
    if config.linear_key_width != config.linear_value_width:
        raise ConfigError(
            f"GGUF has one state size for gated delta nets, but linear_key_width is {config.linear_key_width} and"
            f" linear_value_width is {config.linear_value_width}"
        )
    recurrent = [kind == LINEAR_ATTENTION for kind in config.layer_types] + [False] * config.mtp_layers
    keys: dict[str, Any] = {
        "block_count": config.num_layers + config.mtp_layers,
        **uniform_keys(config),
        "attention.recurrent_layers": recurrent,
        "rope.dimension_count": config.rope_width,
        "ssm.conv_kernel": config.conv_width,
        "ssm.inner_size": config.linear_value_heads * config.linear_value_width,
        "ssm.state_size": config.linear_key_width,
        "ssm.time_step_rank": config.linear_value_heads,
        "ssm.group_count": config.linear_key_heads,
    }
    for interval in range(1, config.num_layers + 1):
        if hybrid_layer_types(config.num_layers, interval) == config.layer_types:
            keys["full_attention_interval"] = interval
            break
    if config.mlp_width:
        keys["feed_forward_length"] = config.mlp_width
    if config.mtp_layers:
        keys["nextn_predict_layers"] = config.mtp_layers
    if config.moe is not None:
        keys["expert_count"] = config.moe.num_experts
        keys["expert_used_count"] = config.moe.experts_per_token
        keys["expert_feed_forward_length"] = config.moe.expert_width
        keys["expert_shared_feed_forward_length"] = config.moe.shared_expert_width
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


def gguf_rules(config: Qwen35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file, see `file_rules`."""
    return file_rules(config, names, partial(copies, _DELTA_NET))


def file_rules(config: Qwen35Config, names: Collection[str], delta_net: LayerRules) -> RuleTable:
    """Rules for a GGUF file of a family of this architecture.

    Args:
        config: the model.
        names: the file's tensor names: they decide between fused and separate expert tensors. Empty when writing.
        delta_net: rules for a gated delta net, given the prefixes of its tensors and of its layer's parameters.
    """

    def moe(block: str, path: str) -> Iterator[Rule]:
        yield from copies(_MOE, block, path)
        if (fused := f"{block}ffn_gate_up_exps.weight") in names:
            yield Split(fused, tuple(f"{path}{parameter}" for _, parameter, _ in EXPERTS_GATE_UP), axis=1)
        else:
            yield from copies(EXPERTS_GATE_UP, block, path)

    def layer(block: str, path: str, kind: str) -> Iterator[Rule]:
        yield from copies(_LAYER, block, path)
        if kind == FULL_ATTENTION:
            yield from copies(ATTENTION + QK_NORMS, block, path)
        else:
            yield from delta_net(block, path)
        yield from copies(MLP, block, path) if config.moe is None else moe(block, path)

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        for i, kind in enumerate(config.layer_types):
            yield from layer(f"blk.{i}.", f"target.layers_{i}.", kind)
        yield Copy("output_norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("output.weight", "target.lm_head.weight")
        if config.mtp_layers:
            i = config.num_layers
            yield from layer(f"blk.{i}.", "mtp.block.", FULL_ATTENTION)
            yield from head_rules(
                i,
                "mtp.",
                own_norm=config.mtp_own_norm,
                own_embedding=config.mtp_own_embedding,
                own_output=config.mtp_own_output,
            )

    return RuleTable(tuple(rules()), _IGNORED, shapes(parameter_shapes, config))


GGUF = FileFormat(
    ("qwen35", "qwen35moe"), config_from_gguf, config_to_gguf, gguf_rules, head_count="nextn_predict_layers"
)
