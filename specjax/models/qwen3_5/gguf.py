"""GGUF files of the Qwen3.5 family.

Sources: llama.cpp `src/models/qwen35*.cpp` (what is read, and its defaults), `conversion/qwen.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Rules, copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.parts import gguf
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table
from specjax.models.qwen3_5.config import FULL_ATTENTION, LINEAR_ATTENTION, MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.parameters import parameter_shapes

PROJECTIONS = weights({"attn_qkv": "delta_net.qkv_proj", "attn_gate": "delta_net.z_proj"})
"""Two projections of gated delta nets, which all families of this architecture have."""
_BETA_AND_DECAY = weights({"ssm_beta": "delta_net.beta_proj", "ssm_alpha": "delta_net.alpha_proj"})
_LAYER = (
    *weights({"attn_norm": "attn_norm", "post_attention_norm": "mlp_norm"}),
    *gguf.ATTENTION,
    *gguf.QK_NORMS,
    *weights({"ssm_conv1d": "delta_net.conv", "ssm_norm": "delta_net.norm", "ssm_out": "delta_net.out_proj"}),
    *copies({"ssm_a": "delta_net.a", "ssm_dt.bias": "delta_net.dt_bias"}),
    *gguf.MLP,
    *gguf.EXPERTS,
    *gguf.SHARED_EXPERT,
    *weights({"ffn_gate_inp_shexp": "moe.shared_gate"}),
)
_IGNORED = {r"rope_freqs\.weight": "rotary frequencies follow from the config"}
_FIELDS = Fields(
    Qwen35Config,
    {
        **gguf.UNIFORM,
        "mlp_width": "feed_forward_length",
        "conv_width": "ssm.conv_kernel",
        "linear_key_heads": "ssm.group_count",
        "linear_value_heads": "ssm.time_step_rank",
        "linear_key_width": "ssm.state_size",
    },
    {**gguf.UNIFORM_DEFAULTS, "mlp_width": 0},
)
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "expert_count",
        "experts_per_token": "expert_used_count",
        "expert_width": "expert_feed_forward_length",
        "shared_expert_width": "expert_shared_feed_forward_length",
    },
    {"expert_width": 0, "shared_expert_width": 0},
)
_INNER_WIDTH = "ssm.inner_size"
_SECTIONS = "rope.dimension_sections"
_RECURRENT, _INTERVAL = "attention.recurrent_layers", "full_attention_interval"
_DEFAULT_INTERVAL = 4


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen35Config:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    settings = read_settings(keys, tensors, _SECTIONS, sparse=keys.arch == "qwen35moe")
    return Qwen35Config(**settings, rope_sections=(*keys.get(_SECTIONS), 0)[:4])


def read_settings(keys: gguf.Keys, tensors: Mapping[str, TensorInfo], *needed: str, sparse: bool) -> dict[str, Any]:
    """The settings of a file, all but `rope_sections`; for the families of this architecture.

    Args:
        keys, tensors: the file's metadata and its tensor table.
        needed: keys that must be there, beside those that are read here.
        sparse: whether it has experts.
    """
    keys.need("block_count", _INNER_WIDTH, *_FIELDS.required, *needed, *(_EXPERTS.required if sparse else ()))
    settings = keys.read_uniform(_FIELDS, tensors)
    num_layers, head = keys.read_head(tensors)
    return {
        **settings,
        **head,
        "layer_types": _layer_types(keys, num_layers),
        "linear_value_width": keys.get(_INNER_WIDTH) // settings["linear_value_heads"],
        "moe": _experts(keys, settings["mlp_width"]) if sparse else None,
    }


def _layer_types(keys: gguf.Keys, num_layers: int) -> tuple[str, ...]:
    recurrent = keys.get(_RECURRENT)
    if recurrent is None:
        return hybrid_layer_types(num_layers, keys.get(_INTERVAL, _DEFAULT_INTERVAL))
    if len(recurrent) < num_layers:
        raise ValueError(f"{_RECURRENT} has {len(recurrent)} entries for {num_layers} layers")
    return tuple(LINEAR_ATTENTION if r else FULL_ATTENTION for r in recurrent[:num_layers])


def _experts(keys: gguf.Keys, mlp_width: int) -> MoEConfig:
    read = keys.read(_EXPERTS)
    read["expert_width"] = read["expert_width"] or mlp_width // read["experts_per_token"]
    read["shared_expert_width"] = read["shared_expert_width"] or mlp_width
    return MoEConfig(**read)


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
    intervals = range(1, config.num_layers + 1)
    keys: dict[str, Any] = {
        "block_count": config.num_layers + config.mtp_layers,
        **gguf.uniform_keys(config, _FIELDS),
        "feed_forward_length": config.mlp_width or None,
        _INNER_WIDTH: config.linear_value_heads * config.linear_value_width,
        _RECURRENT: [kind == LINEAR_ATTENTION for kind in config.layer_types] + [False] * config.mtp_layers,
        _INTERVAL: next((i for i in intervals if hybrid_layer_types(len(intervals), i) == config.layer_types), None),
        gguf.HEAD_COUNT: config.mtp_layers or None,
    }
    return gguf.metadata_of(config, keys | ({} if config.moe is None else _EXPERTS.write(config.moe)))


def gguf_rules(config: Qwen35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file, see `file_rules`."""
    return file_rules(config, names, PROJECTIONS + _BETA_AND_DECAY)


def file_rules(config: Qwen35Config, names: Collection[str], projections: Rules) -> RuleTable:
    """Rules for a GGUF file of a family of this architecture.

    Args:
        config: the model.
        names: of the file's tensors; empty when writing.
        projections: the rules for what gated delta nets read their input by.
    """
    rules = gguf.model(_LAYER + projections, config.num_layers)
    return rule_table(parameter_shapes, config, rules, names, _IGNORED)


GGUF = FileFormat(("qwen35", "qwen35moe"), config_from_gguf, config_to_gguf, gguf_rules, head_count=gguf.HEAD_COUNT)
