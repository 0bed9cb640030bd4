"""Tensor names of the Step-3.5 family in GGUF files and in Hugging Face checkpoints.

Sources: llama.cpp `gguf-py/gguf/constants.py`, `src/models/step35.cpp` and `conversion/step3.py`; the names of the
released checkpoints, as `conversion_mapping.py` of transformers (`step3p7`) and that converter take them.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkpoints.errors import ConfigError, MissingMTPWarning
from checkpoints.mapping import RuleTable
from checkpoints.rule import Computed, Copy, Rule
from checkpoints.transforms import IDENTITY, PLUS_ONE, Shape, Transform
from checkpoints.tree import flatten
from specjax.models.step3_5.config import HeadConfig, LayerConfig, Step35Config
from specjax.models.step3_5.parameters import parameter_shapes

_Names = tuple[tuple[str, str, Transform], ...]
"""(tensor name within its block, parameter path within its block, transform)"""

_GGUF_LAYER: _Names = (
    ("attn_norm.weight", "attn_norm.weight", IDENTITY),
    ("attn_q.weight", "attention.q_proj.weight", IDENTITY),
    ("attn_k.weight", "attention.k_proj.weight", IDENTITY),
    ("attn_v.weight", "attention.v_proj.weight", IDENTITY),
    ("attn_output.weight", "attention.o_proj.weight", IDENTITY),
    ("attn_gate.weight", "attention.gate_proj.weight", IDENTITY),
    ("attn_q_norm.weight", "attention.q_norm.weight", IDENTITY),
    ("attn_k_norm.weight", "attention.k_norm.weight", IDENTITY),
    ("ffn_norm.weight", "mlp_norm.weight", IDENTITY),
)
_GGUF_MLP: _Names = (
    ("ffn_gate.weight", "mlp.gate_proj.weight", IDENTITY),
    ("ffn_up.weight", "mlp.up_proj.weight", IDENTITY),
    ("ffn_down.weight", "mlp.down_proj.weight", IDENTITY),
)
_GGUF_MOE: _Names = (
    ("ffn_gate_inp.weight", "moe.router.weight", IDENTITY),
    ("ffn_gate_exps.weight", "moe.experts_gate", IDENTITY),
    ("ffn_up_exps.weight", "moe.experts_up", IDENTITY),
    ("ffn_down_exps.weight", "moe.experts_down", IDENTITY),
    ("ffn_gate_shexp.weight", "moe.shared.gate_proj.weight", IDENTITY),
    ("ffn_up_shexp.weight", "moe.shared.up_proj.weight", IDENTITY),
    ("ffn_down_shexp.weight", "moe.shared.down_proj.weight", IDENTITY),
)
_GGUF_MOE_BIAS: _Names = (("exp_probs_b.bias", "moe.router_bias", IDENTITY),)
_GGUF_HEAD: _Names = (
    ("nextn.enorm.weight", "enorm.weight", IDENTITY),
    ("nextn.hnorm.weight", "hnorm.weight", IDENTITY),
    ("nextn.eh_proj.weight", "eh_proj.weight", IDENTITY),
)
GGUF_ROPE_FACTORS = "rope_freqs.weight"
GGUF_ROUTER = "blk.{}.ffn_gate_inp.weight"
GGUF_ROUTER_BIAS = "blk.{}.exp_probs_b.bias"
GGUF_HEAD_EMBEDDING = "blk.{}.nextn.embed_tokens.weight"
GGUF_HEAD_OUTPUT = "blk.{}.nextn.shared_head_head.weight"
GGUF_HEAD_NORM = "blk.{}.nextn.shared_head_norm.weight"
"""Optional tensors; the block's number stands in the braces."""


@dataclass(frozen=True)
class RopeFactors:
    """Divisors of rotary frequencies, which a file pads with ones to the pairs of the widest rotation.

    Attributes:
        source, path: the tensor and the parameter.
        used, stored: how many divisors the model has, and the file.
    """

    source: str
    path: str
    used: int
    stored: int

    @property
    def sources(self) -> tuple[str, ...]:
        """See `checkpoints.rule.Rule`."""
        return (self.source,)

    @property
    def paths(self) -> tuple[str, ...]:
        """See `checkpoints.rule.Rule`."""
        return (self.path,)

    @property
    def keeps_rows(self) -> bool:
        """See `checkpoints.rule.Rule`."""
        return False

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """See `checkpoints.rule.Rule`."""
        return [(self.stored,)]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        """See `checkpoints.rule.Rule`."""
        return [next(tensors)[: self.used]]

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """See `checkpoints.rule.Rule`."""
        yield np.pad(parameters[0], (0, self.stored - self.used), constant_values=1)


def gguf_rules(config: Step35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; `names` decide nothing here: what is optional is in the config."""
    del names

    def head(index: int, own: HeadConfig) -> Iterator[Rule]:
        number, path = config.num_layers + index, f"mtp.heads_{index}."
        yield from _layer_rules(config, own.layer, f"blk.{number}.", f"{path}block.", _GGUF_TABLES)
        yield from _block_rules(_GGUF_HEAD, f"blk.{number}.", path)
        if own.own_norm:
            yield Copy(GGUF_HEAD_NORM.format(number), f"{path}norm.weight")
        if own.own_embedding:
            yield Copy(GGUF_HEAD_EMBEDDING.format(number), f"{path}embed.weight")
        if own.own_output:
            yield Copy(GGUF_HEAD_OUTPUT.format(number), f"{path}lm_head.weight")

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        if config.rope_factors:
            stored = max(config.attention(layer).rope_width for layer in config.layers) // 2
            yield RopeFactors(GGUF_ROPE_FACTORS, "target.rope_factors", config.full.rope_width // 2, stored)
        for i, layer in enumerate(config.layers):
            yield from _layer_rules(config, layer, f"blk.{i}.", f"target.layers_{i}.", _GGUF_TABLES)
        yield Copy("output_norm.weight", "target.norm.weight")
        yield Copy("output.weight", "target.lm_head.weight")
        for index, own in enumerate(config.heads):
            yield from head(index, own)

    return RuleTable(tuple(rules()), {}, _shapes(config))


_HF_LAYER: _Names = (
    ("input_layernorm.weight", "attn_norm.weight", PLUS_ONE),
    ("self_attn.q_proj.weight", "attention.q_proj.weight", IDENTITY),
    ("self_attn.k_proj.weight", "attention.k_proj.weight", IDENTITY),
    ("self_attn.v_proj.weight", "attention.v_proj.weight", IDENTITY),
    ("self_attn.o_proj.weight", "attention.o_proj.weight", IDENTITY),
    ("self_attn.g_proj.weight", "attention.gate_proj.weight", IDENTITY),
    ("self_attn.q_norm.weight", "attention.q_norm.weight", PLUS_ONE),
    ("self_attn.k_norm.weight", "attention.k_norm.weight", PLUS_ONE),
    ("post_attention_layernorm.weight", "mlp_norm.weight", PLUS_ONE),
)
_HF_MLP: _Names = (
    ("mlp.gate_proj.weight", "mlp.gate_proj.weight", IDENTITY),
    ("mlp.up_proj.weight", "mlp.up_proj.weight", IDENTITY),
    ("mlp.down_proj.weight", "mlp.down_proj.weight", IDENTITY),
)
_HF_MOE: _Names = (
    ("moe.gate.weight", "moe.router.weight", IDENTITY),
    ("moe.gate_proj.weight", "moe.experts_gate", IDENTITY),
    ("moe.up_proj.weight", "moe.experts_up", IDENTITY),
    ("moe.down_proj.weight", "moe.experts_down", IDENTITY),
    ("share_expert.gate_proj.weight", "moe.shared.gate_proj.weight", IDENTITY),
    ("share_expert.up_proj.weight", "moe.shared.up_proj.weight", IDENTITY),
    ("share_expert.down_proj.weight", "moe.shared.down_proj.weight", IDENTITY),
)
_HF_MOE_BIAS: _Names = (("moe.router_bias", "moe.router_bias", IDENTITY),)
_HF_HEAD: _Names = (
    ("enorm.weight", "enorm.weight", PLUS_ONE),
    ("hnorm.weight", "hnorm.weight", PLUS_ONE),
    ("eh_proj.weight", "eh_proj.weight", IDENTITY),
)
_HF_IGNORED = {
    r"(model\.)?(vision_model|vit_large_projector|multi_modal_projector)\..*": "the vision tower; only text is loaded",
    r".*rotary_emb\.inv_freq": "rotary frequencies follow from the config",
}
HF_ROUTER = "layers.{}.moe.gate.weight"
HF_ROUTER_BIAS = "layers.{}.moe.router_bias"
HF_HEAD_EMBEDDING = "layers.{}.embed_tokens.weight"
HF_HEAD_OUTPUT = "layers.{}.transformer.shared_head.output.weight"
HF_HEAD_NORM = "layers.{}.transformer.shared_head.norm.weight"
"""Optional tensors, after the prefix; the layer's number stands in the braces."""


def hf_prefix(names: Collection[str]) -> str:
    """`model.` as in the released checkpoints, `model.language_model.` if the text model is nested."""
    nested = "model.language_model."
    return nested if any(name.startswith(nested) for name in names) else "model."


def hf_rules(config: Step35Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model; its `rope_factors` are computed by its `rope_formula`.
        names: the checkpoint's tensor names: they decide the prefix. Empty when writing (prefix `model.`).

    Raises:
        ConfigError: the model has rotary factors, but no known formula, by which alone config.json can state them.
    """
    if config.rope_factors and config.rope_formula is None:
        raise ConfigError(
            "config.json states rotary factors by a formula, Llama 3's, but this model has only the numbers, and no"
            " settings of the formula were found that give them; convert from the original checkpoint instead"
        )
    prefix = hf_prefix(names)

    def head(index: int, own: HeadConfig) -> Iterator[Rule]:
        number, path = config.num_layers + index, f"mtp.heads_{index}."
        yield from _layer_rules(config, own.layer, f"{prefix}layers.{number}.", f"{path}block.", _HF_TABLES)
        yield from _block_rules(_HF_HEAD, f"{prefix}layers.{number}.", path)
        if own.own_norm:
            yield Copy(prefix + HF_HEAD_NORM.format(number), f"{path}norm.weight", PLUS_ONE)
        if own.own_embedding:
            yield Copy(prefix + HF_HEAD_EMBEDDING.format(number), f"{path}embed.weight")
        if own.own_output:
            yield Copy(prefix + HF_HEAD_OUTPUT.format(number), f"{path}lm_head.weight")

    def rules() -> Iterator[Rule]:
        yield Copy(f"{prefix}embed_tokens.weight", "target.embed.weight")
        if config.rope_formula is not None:
            factors = config.rope_formula.factors(config.full.rope_theta, config.full.rope_width)
            yield Computed("target.rope_factors", factors)
        for i, layer in enumerate(config.layers):
            yield from _layer_rules(config, layer, f"{prefix}layers.{i}.", f"target.layers_{i}.", _HF_TABLES)
        yield Copy(f"{prefix}norm.weight", "target.norm.weight", PLUS_ONE)
        yield Copy("lm_head.weight", "target.lm_head.weight")
        for index, own in enumerate(config.heads):
            yield from head(index, own)

    return RuleTable(tuple(rules()), _HF_IGNORED, _shapes(config))


def count_heads(declared: int, present: Callable[[int], bool], where: str) -> int:
    """How many of the declared heads, from the first on, are in the file.

    Warns:
        MissingMTPWarning: fewer than declared.
    """
    count = next((index for index in range(declared) if not present(index)), declared)
    if count < declared:
        consequence = "a round drafts as many tokens at most" if count else "nothing can be drafted"
        warnings.warn(
            f"{where}: {declared} MTP heads are declared, but the file has the tensors of {count or 'none'}."
            f" Loading the trunk {'and these heads' if count else 'alone'}: {consequence} with this file.",
            MissingMTPWarning,
            stacklevel=2,
        )
    return count


_Tables = tuple[_Names, _Names, _Names, _Names]
_GGUF_TABLES: _Tables = (_GGUF_LAYER, _GGUF_MLP, _GGUF_MOE, _GGUF_MOE_BIAS)
_HF_TABLES: _Tables = (_HF_LAYER, _HF_MLP, _HF_MOE, _HF_MOE_BIAS)


def _layer_rules(config: Step35Config, layer: LayerConfig, block: str, path: str, tables: _Tables) -> Iterator[Rule]:
    common, dense, sparse, bias = tables
    yield from _block_rules(common, block, path)
    yield from _block_rules(sparse if layer.sparse else dense, block, path)
    if layer.sparse and config.moe is not None and config.moe.selection_bias:
        yield from _block_rules(bias, block, path)


def _block_rules(names: _Names, block: str, path: str) -> Iterator[Rule]:
    for source, parameter, transform in names:
        yield Copy(f"{block}{source}", f"{path}{parameter}", transform)


@functools.cache
def _shapes(config: Step35Config) -> Mapping[str, Shape]:
    return {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(config)).items()}
