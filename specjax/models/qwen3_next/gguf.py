"""GGUF files of Qwen3-Next.

Sources: llama.cpp `src/models/qwen3next.cpp` (what is read, and its defaults), `conversion/qwen.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from specjax.models.parts.gguf import Keys
from specjax.models.parts.names import copies
from specjax.models.qwen3_5.gguf import PROJECTIONS, RECURRENCE, file_rules, read_settings, write_settings
from specjax.models.qwen3_next.config import Qwen3NextConfig
from specjax.models.qwen3_next.rules import joint_ba, joint_qkvz


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Qwen3NextConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    return Qwen3NextConfig(**read_settings(Keys(metadata, where), tensors, sparse=True))


def gguf_rules(config: Qwen3NextConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file, see `specjax.models.qwen3_5.gguf.file_rules`.

    Old files have queries, keys, values and gates in one tensor; the names tell.
    """

    def delta_net(block: str, path: str) -> Iterator[Rule]:
        if (joint := f"{block}ssm_in.weight") in names:
            yield joint_qkvz(config, joint, path)
        else:
            yield from copies(PROJECTIONS, block, path)
        yield joint_ba(config, f"{block}ssm_ba.weight", path)
        yield from copies(RECURRENCE, block, path)

    return file_rules(config, names, delta_net)


GGUF = FileFormat(("qwen3next",), config_from_gguf, write_settings, gguf_rules, head_count="nextn_predict_layers")
