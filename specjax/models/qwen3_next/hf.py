"""Hugging Face checkpoints of Qwen3-Next.

Sources: transformers `models/qwen3_next/configuration_qwen3_next.py`, whose defaults are used for absent keys;
`modeling_qwen3_next.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, NEGATIVE_EXP
from checkpoints.source import TensorInfo
from specjax.models.parts import hf
from specjax.models.parts.names import Names, copies
from specjax.models.qwen3_5.hf import TAPS, file_rules, read_settings, write_settings
from specjax.models.qwen3_next.config import Qwen3NextConfig
from specjax.models.qwen3_next.rules import joint_ba, joint_qkvz

_RECURRENCE: Names = (
    ("linear_attn.conv1d.weight", "delta_net.conv.weight", TAPS),
    ("linear_attn.A_log", "delta_net.a", NEGATIVE_EXP),
    ("linear_attn.dt_bias", "delta_net.dt_bias", IDENTITY),
    ("linear_attn.norm.weight", "delta_net.norm.weight", IDENTITY),
    ("linear_attn.out_proj.weight", "delta_net.out_proj.weight", IDENTITY),
)
_FIXED = {"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
"""Keys of which one value is built: layers without experts, and what else llama.cpp cannot express, are not."""


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen3NextConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    text = document.get("text_config") or document
    for key, supported in _FIXED.items():
        hf.need_value(text, key, supported, where)
    return Qwen3NextConfig(**read_settings(text, tensors, where, sparse=True))


def config_to_hf(config: Qwen3NextConfig) -> dict[str, Any]:
    """The config.json in the form of the released ones, which every version of transformers reads.

    It says nothing of the MTP block: whether there is one is told by its tensors.
    """
    return {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        **write_settings(config),
        **_FIXED,
        "partial_rotary_factor": config.rope_width / config.head_width,
        "rope_scaling": None,
        "rope_theta": config.rope_theta,
    }


def hf_rules(config: Qwen3NextConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors, see `specjax.models.qwen3_5.hf.file_rules`."""

    def delta_net(block: str, path: str) -> Iterator[Rule]:
        yield joint_qkvz(config, f"{block}linear_attn.in_proj_qkvz.weight", path)
        yield joint_ba(config, f"{block}linear_attn.in_proj_ba.weight", path)
        yield from copies(_RECURRENCE, block, path)

    return file_rules(config, names, delta_net, lone_experts=True)


HF = FileFormat(("qwen3_next",), config_from_hf, config_to_hf, hf_rules)
