"""Hugging Face checkpoints of Qwen3-Next.

Sources: transformers `models/qwen3_next/configuration_qwen3_next.py`, whose defaults are used for absent keys;
`modeling_qwen3_next.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import NEGATIVE_EXP
from checkpoints.source import TensorInfo
from specjax.models.parts import hf
from specjax.models.qwen3_5.hf import TAPS, file_rules, num_experts, read_settings, write_settings
from specjax.models.qwen3_next.config import Qwen3NextConfig
from specjax.models.qwen3_next.rules import joint_ba, joint_qkvz

_RECURRENCE = (
    *weights({"linear_attn.conv1d": "delta_net.conv"}, TAPS),
    *copies({"linear_attn.A_log": "delta_net.a"}, NEGATIVE_EXP),
    *copies({"linear_attn.dt_bias": "delta_net.dt_bias"}),
    *weights({"linear_attn.out_proj": "delta_net.out_proj"}),
)
_FIXED = {"attention_bias": False, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
"""Keys of which one value is built: layers without experts, and what else llama.cpp cannot express, are not."""


def config_from_hf(document: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen3NextConfig:
    """The config of a Hugging Face checkpoint; see `FileFormat.read_config`."""
    text = hf.text_of(document)
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
    qkvz = joint_qkvz(config, "linear_attn.in_proj_qkvz.weight")
    delta_net = (qkvz, joint_ba(config, "linear_attn.in_proj_ba.weight"), *_RECURRENCE)
    return file_rules(config, names, delta_net, (*hf.lone_experts(num_experts(config)), *hf.FUSED_EXPERTS))


HF = FileFormat(("qwen3_next",), config_from_hf, config_to_hf, hf_rules)
