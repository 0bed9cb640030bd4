"""GGUF files of plain decoder-only transformers (Qwen3, Llama).

Sources: llama.cpp `src/models/{qwen3,llama}.cpp` (what is read, and its defaults), `conversion/{qwen,llama}.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rope_formula import DIVISORS
from checkpoints.mapping.rule import copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, Transform, reordered
from checkpoints.source import TensorInfo
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.parameters import parameter_shapes
from specjax.models.parts import gguf
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table

_FIELDS = Fields(
    DenseConfig,
    {**gguf.UNIFORM, "num_layers": "block_count", "mlp_width": "feed_forward_length"},
    gguf.UNIFORM_DEFAULTS,
)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DenseConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    keys.need(*_FIELDS.required)
    if keys.get("expert_count", 0):
        raise ConfigError(f"{where}: {keys.arch} with experts is not supported, only the dense architecture")
    settings = keys.read_uniform(_FIELDS, tensors)
    if (rotating := settings.pop("rope_width")) != settings["head_width"]:
        raise ValueError(f"{rotating} of {settings['head_width']} dimensions rotate; all must")
    return DenseConfig(architecture=keys.arch, rope_factors=gguf.ROPE_FACTORS in tensors, **settings)


def config_to_gguf(config: DenseConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    return gguf.metadata_of(config, gguf.uniform_keys(config, _FIELDS))


def interleave_pairs(heads: int, width: int) -> Transform:
    """Rows of q and k from neighbouring rotary pairs, as GGUF files of `llama` have them, to half-split ones."""
    order = np.arange(heads * width).reshape(heads, width // 2, 2).swapaxes(1, 2).reshape(-1)
    return reordered(order, axis=0, keeps_rows=True)


def gguf_rules(config: DenseConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file."""
    permuted = config.architecture == "llama"
    q = interleave_pairs(config.num_heads, config.head_width) if permuted else IDENTITY
    k = interleave_pairs(config.num_kv_heads, config.head_width) if permuted else IDENTITY
    layer = (
        *weights({"attn_norm": "attn_norm", "ffn_norm": "mlp_norm"}),
        *weights({"attn_v": "attention.v_proj", "attn_output": "attention.o_proj"}),
        *gguf.MLP,
        *weights({"attn_q": "attention.q_proj"}, q),
        *weights({"attn_k": "attention.k_proj"}, k),
        *gguf.QK_NORMS,
    )
    rules = (*gguf.trunk(layer, config.num_layers), *copies({gguf.ROPE_FACTORS: DIVISORS}))
    return rule_table(parameter_shapes, config, rules, names)


GGUF = FileFormat(("llama", "qwen3"), config_from_gguf, config_to_gguf, gguf_rules)
