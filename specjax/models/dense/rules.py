"""Tensor names of plain decoder-only transformers (Qwen3, Llama) in GGUF files and in Hugging Face checkpoints.

Sources: llama.cpp `gguf-py/gguf/constants.py` and `conversion/{qwen,llama}.py`; transformers `models/{qwen3,llama}`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from checkpoints.errors import ConfigError
from checkpoints.mapping import RuleTable
from checkpoints.rule import Computed, Copy, Rule
from checkpoints.transforms import IDENTITY, Shape, Transform
from checkpoints.tree import flatten
from specjax.models.dense.config import DenseConfig
from specjax.models.dense.parameters import parameter_shapes

_GGUF = {
    "attn_norm": "attn_norm",
    "ffn_norm": "mlp_norm",
    "attn_v": "attention.v_proj",
    "attn_output": "attention.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HF = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "attention.q_proj",
    "self_attn.k_proj": "attention.k_proj",
    "self_attn.v_proj": "attention.v_proj",
    "self_attn.o_proj": "attention.o_proj",
    "mlp.gate_proj": "mlp.gate_proj",
    "mlp.up_proj": "mlp.up_proj",
    "mlp.down_proj": "mlp.down_proj",
}
GGUF_ROPE_FACTORS = "rope_freqs.weight"


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
            for name, parameter in _GGUF.items():
                yield Copy(f"{block}{name}.weight", f"{path}{parameter}.weight")
            yield Copy(f"{block}attn_q.weight", f"{path}attention.q_proj.weight", q)
            yield Copy(f"{block}attn_k.weight", f"{path}attention.k_proj.weight", k)
            if config.qk_norm:
                yield Copy(f"{block}attn_q_norm.weight", f"{path}attention.q_norm.weight")
                yield Copy(f"{block}attn_k_norm.weight", f"{path}attention.k_norm.weight")
        yield Copy("output_norm.weight", "target.norm.weight")
        if config.rope_factors:
            yield Copy(GGUF_ROPE_FACTORS, "target.rope_factors")
        if not config.tied_embeddings:
            yield Copy("output.weight", "target.lm_head.weight")

    return RuleTable(tuple(rules()), {}, _shapes(config))


def hf_rules(config: DenseConfig, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors; `names` is not needed.

    Raises:
        ConfigError: the model has rotary divisors, but no known formula, by which alone config.json can state them.
    """
    del names
    if config.rope_factors and config.rope_formula is None:
        raise ConfigError(
            "config.json states rotary divisors by a formula, Llama 3's, but this model has only the numbers, and no"
            " settings of the formula were found that give them; convert from the original checkpoint instead"
        )

    def rules() -> Iterator[Rule]:
        yield Copy("model.embed_tokens.weight", "target.embed.weight")
        for i in range(config.num_layers):
            block, path = f"model.layers.{i}.", f"target.layers_{i}."
            for name, parameter in _HF.items():
                yield Copy(f"{block}{name}.weight", f"{path}{parameter}.weight")
            if config.qk_norm:
                yield Copy(f"{block}self_attn.q_norm.weight", f"{path}attention.q_norm.weight")
                yield Copy(f"{block}self_attn.k_norm.weight", f"{path}attention.k_norm.weight")
        yield Copy("model.norm.weight", "target.norm.weight")
        if config.rope_formula is not None:
            factors = config.rope_formula.factors(config.rope_theta, config.head_width)
            yield Computed("target.rope_factors", factors)
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")

    ignored = {r".*rotary_emb\.inv_freq": "rotary frequencies follow from the config"}
    if config.tied_embeddings:
        ignored[r"lm_head\.weight"] = "a second copy of the tied embedding table"
    return RuleTable(tuple(rules()), ignored, _shapes(config))


@functools.cache
def _shapes(config: DenseConfig) -> Mapping[str, Shape]:
    return {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(config)).items()}
