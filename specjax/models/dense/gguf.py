"""GGUF files of plain decoder-only transformers (Qwen3, Llama).

Sources: llama.cpp `src/models/{qwen3,llama}.cpp` (what is read, and its defaults), `conversion/{qwen,llama}.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rope_formula import DIVISORS
from checkpoints.mapping.rule import Copy, Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, Transform
from checkpoints.source import TensorInfo
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.parameters import parameter_shapes
from specjax.models.parts.gguf import MLP, QK_NORMS, ROPE_FACTORS, Keys, uniform_keys
from specjax.models.parts.names import copies, shapes, weights

_LAYER = weights(
    {
        "attn_norm": "attn_norm",
        "ffn_norm": "mlp_norm",
        "attn_v": "attention.v_proj",
        "attn_output": "attention.o_proj",
    }
)
_REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> DenseConfig:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = Keys(metadata, where)
    keys.need(*_REQUIRED)
    if keys.get("expert_count", 0):
        raise ConfigError(f"{where}: {keys.arch} with experts is not supported, only the dense architecture")
    keys.need_no_rope_scaling()
    width, num_heads = keys.get("embedding_length"), keys.get("attention.head_count")
    head_width = keys.get("attention.key_length", width // num_heads)
    if (rotating := keys.get("rope.dimension_count", head_width)) != head_width:
        raise ValueError(f"{rotating} of {head_width} dimensions rotate; all must")
    return DenseConfig(
        architecture=keys.arch,
        vocab_size=keys.vocab_size(tensors),
        num_layers=keys.get("block_count"),
        width=width,
        mlp_width=keys.get("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=keys.get("attention.head_count_kv", num_heads),
        head_width=head_width,
        rope_theta=keys.get("rope.freq_base", 10000.0),
        rope_factors=ROPE_FACTORS in tensors,
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=keys.get("context_length"),
        tied_embeddings="output.weight" not in tensors,
    )


def config_to_gguf(config: DenseConfig) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart."""
    keys = {
        "block_count": config.num_layers,
        **uniform_keys(config),
        "feed_forward_length": config.mlp_width,
        "rope.dimension_count": config.head_width,
    }
    return {f"{config.architecture}.{key}": value for key, value in keys.items()}


def interleave_pairs(heads: int, width: int) -> Transform:
    """Rows of q and k from neighbouring rotary pairs, as GGUF files of `llama` have them, to half-split ones."""
    order = np.arange(heads * width).reshape(heads, width // 2, 2).swapaxes(1, 2).reshape(-1)
    inverse = np.argsort(order)
    return Transform(lambda x: x[order], lambda x: x[inverse], keeps_rows=True)


def gguf_rules(config: DenseConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; `names` is not needed."""
    del names
    permuted = config.architecture == "llama"
    q = interleave_pairs(config.num_heads, config.head_width) if permuted else IDENTITY
    k = interleave_pairs(config.num_kv_heads, config.head_width) if permuted else IDENTITY

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        for i in range(config.num_layers):
            block, path = f"blk.{i}.", f"target.layers_{i}."
            yield from copies(_LAYER + MLP, block, path)
            yield Copy(f"{block}attn_q.weight", f"{path}attention.q_proj.weight", q)
            yield Copy(f"{block}attn_k.weight", f"{path}attention.k_proj.weight", k)
            if config.qk_norm:
                yield from copies(QK_NORMS, block, path)
        yield Copy("output_norm.weight", "target.norm.weight")
        if config.rope_factors:
            yield Copy(ROPE_FACTORS, DIVISORS)
        if not config.tied_embeddings:
            yield Copy("output.weight", "target.lm_head.weight")

    return RuleTable(tuple(rules()), {}, shapes(parameter_shapes, config))


GGUF = FileFormat(("llama", "qwen3"), config_from_gguf, config_to_gguf, gguf_rules)
