"""GGUF files of Qwen3-Next.

Sources: llama.cpp `src/models/qwen3next.cpp` (what is read, and its defaults), `conversion/qwen.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.parts.gguf import HEAD_COUNT, Keys
from specjax.models.qwen3_5.gguf import PROJECTIONS, file_rules, read_settings, write_settings
from specjax.models.qwen3_next.config import Qwen3NextConfig
from specjax.models.qwen3_next.rules import joint_ba, joint_qkvz


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen3NextConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    return Qwen3NextConfig(**read_settings(Keys(metadata, where), tensors, sparse=True))


def gguf_rules(config: Qwen3NextConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file, see `specjax.models.qwen3_5.gguf.file_rules`.

    Old files have queries, keys, values and gates in one tensor; the names tell.
    """
    joint = joint_qkvz(config, "ssm_in.weight"), joint_ba(config, "ssm_ba.weight")
    return file_rules(config, names, PROJECTIONS + joint)


GGUF = FileFormat(("qwen3next",), config_from_gguf, write_settings, gguf_rules, head_count=HEAD_COUNT)
