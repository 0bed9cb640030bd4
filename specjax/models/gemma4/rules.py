"""Tensor names of Gemma 4 in GGUF files and in Hugging Face checkpoints.

Sources: llama.cpp `gguf-py/gguf/constants.py`, `src/models/gemma4.cpp` and `conversion/gemma.py`; transformers
`models/gemma4/modeling_gemma4.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkpoints.errors import ConfigError
from checkpoints.mapping import RuleTable
from checkpoints.rule import Copy, Rule, Split
from checkpoints.transforms import Shape
from checkpoints.tree import flatten
from specjax.models.gemma4.config import AttentionConfig, Gemma4Config, LayerConfig
from specjax.models.gemma4.parameters import parameter_shapes

Names = tuple[tuple[str, str], ...]
"""(tensor name within its block, parameter path within its layer)"""

_GGUF_LAYER: Names = (
    ("attn_norm.weight", "attn_norm.weight"),
    ("attn_q.weight", "attention.q_proj.weight"),
    ("attn_q_norm.weight", "attention.q_norm.weight"),
    ("attn_output.weight", "attention.o_proj.weight"),
    ("post_attention_norm.weight", "post_attn_norm.weight"),
    ("ffn_norm.weight", "mlp_norm.weight"),
    ("ffn_gate.weight", "mlp.gate_proj.weight"),
    ("ffn_up.weight", "mlp.up_proj.weight"),
    ("ffn_down.weight", "mlp.down_proj.weight"),
    ("post_ffw_norm.weight", "post_mlp_norm.weight"),
    ("layer_output_scale.weight", "scale"),
)
_GGUF_KEY: Names = (
    ("attn_k.weight", "attention.k_proj.weight"),
    ("attn_k_norm.weight", "attention.k_norm.weight"),
)
_GGUF_VALUE: Names = (("attn_v.weight", "attention.v_proj.weight"),)
_GGUF_PER_LAYER: Names = (
    ("inp_gate.weight", "per_layer_gate.weight"),
    ("proj.weight", "per_layer_proj.weight"),
    ("post_norm.weight", "post_per_layer_norm.weight"),
)
_GGUF_EXPERTS: Names = (
    ("ffn_gate_inp.weight", "experts.router.weight"),
    ("ffn_gate_inp.scale", "experts.router_scale"),
    ("ffn_down_exps.weight", "experts.down"),
    ("ffn_down_exps.scale", "experts.expert_scale"),
    ("pre_ffw_norm_2.weight", "experts_norm.weight"),
    ("post_ffw_norm_1.weight", "post_dense_norm.weight"),
    ("post_ffw_norm_2.weight", "post_experts_norm.weight"),
)
_UNROTATED = 1e30
"""Divisor of the frequency of a pair that does not rotate, as the converter writes it."""


@dataclass(frozen=True)
class RopeDivisors:
    """`rope_freqs.weight`: divisors of the full layers' rotary frequencies. They hold no parameters: the config says
    how many pairs rotate, and the tensor is checked against it, and written from it."""

    attention: AttentionConfig
    source: str = "rope_freqs.weight"

    @property
    def sources(self) -> tuple[str, ...]:
        """The tensor's name."""
        return (self.source,)

    @property
    def paths(self) -> tuple[str, ...]:
        """No parameter."""
        return ()

    @property
    def keeps_rows(self) -> bool:
        """No row of it goes anywhere."""
        return False

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """A divisor for each pair of a head."""
        del shapes
        return [(self.attention.head_width // 2,)]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        """Nothing; raises `ConfigError` if the divisors are not those of the config."""
        stored = np.asarray(next(tensors), np.float64)
        rotating = np.arange(len(stored)) < self.attention.rope_width // 2
        if not np.array_equal(stored == 1, rotating) or not np.all(stored[~rotating] > 1e20):
            raise ConfigError(
                f"{self.source} does not say that the first {rotating.sum()} of {len(stored)} pairs rotate, which is"
                " how this architecture is built; convert the model again"
            )
        return []

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """The divisors of the config."""
        del parameters
        pairs = np.arange(self.attention.head_width // 2)
        yield np.where(pairs < self.attention.rope_width // 2, 1, _UNROTATED).astype(np.float32)


def gguf_layer(config: LayerConfig, block: str, path: str, names: Collection[str] = ()) -> Iterator[Rule]:
    """Rules for one layer of a GGUF file; `names` as in `gguf_rules`."""
    yield from copies(_GGUF_LAYER, block, path)
    if config.own_kv:
        yield from copies(_GGUF_KEY, block, path)
        if not config.value_is_key:
            yield from copies(_GGUF_VALUE, block, path)
    if config.per_layer_width:
        yield from copies(_GGUF_PER_LAYER, block, path)
    if config.moe is not None:
        yield from copies(_GGUF_EXPERTS, block, path)
        if f"{block}ffn_gate_exps.weight" in names:
            yield Copy(f"{block}ffn_gate_exps.weight", f"{path}experts.gate")
            yield Copy(f"{block}ffn_up_exps.weight", f"{path}experts.up")
        else:
            yield Split(f"{block}ffn_gate_up_exps.weight", (f"{path}experts.gate", f"{path}experts.up"), axis=1)


def gguf_rules(config: Gemma4Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file.

    Args:
        config: the model.
        names: the file's tensor names: they decide between fused and separate expert tensors, and which keys and values
            are dead weight. Empty when writing (fused).
    """

    def rules() -> Iterator[Rule]:
        yield Copy("token_embd.weight", "target.embed.weight")
        if config.per_layer_width:
            yield Copy("per_layer_token_embd.weight", "target.per_layer_embed.weight")
            yield Copy("per_layer_model_proj.weight", "target.per_layer_proj.weight")
            yield Copy("per_layer_proj_norm.weight", "target.per_layer_norm.weight")
        yield RopeDivisors(config.full)
        for i in range(config.num_layers):
            yield from gguf_layer(config.layer(i), f"blk.{i}.", f"target.layers_{i}.", names)
        yield Copy("output_norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("output.weight", "target.lm_head.weight")

    ignored = {
        rf"blk\.{i}\.attn_(k|v|k_norm)\.weight": "the layer reads the keys and values of an earlier one"
        for i in range(config.num_caches, config.num_layers)
    }
    return RuleTable(tuple(rules()), ignored, _shapes(config))


_HF_LAYER: Names = (
    ("input_layernorm.weight", "attn_norm.weight"),
    ("self_attn.q_proj.weight", "attention.q_proj.weight"),
    ("self_attn.q_norm.weight", "attention.q_norm.weight"),
    ("self_attn.o_proj.weight", "attention.o_proj.weight"),
    ("post_attention_layernorm.weight", "post_attn_norm.weight"),
    ("pre_feedforward_layernorm.weight", "mlp_norm.weight"),
    ("mlp.gate_proj.weight", "mlp.gate_proj.weight"),
    ("mlp.up_proj.weight", "mlp.up_proj.weight"),
    ("mlp.down_proj.weight", "mlp.down_proj.weight"),
    ("post_feedforward_layernorm.weight", "post_mlp_norm.weight"),
    ("layer_scalar", "scale"),
)
_HF_KEY: Names = (
    ("self_attn.k_proj.weight", "attention.k_proj.weight"),
    ("self_attn.k_norm.weight", "attention.k_norm.weight"),
)
_HF_VALUE: Names = (("self_attn.v_proj.weight", "attention.v_proj.weight"),)
_HF_PER_LAYER: Names = (
    ("per_layer_input_gate.weight", "per_layer_gate.weight"),
    ("per_layer_projection.weight", "per_layer_proj.weight"),
    ("post_per_layer_input_norm.weight", "post_per_layer_norm.weight"),
)
_HF_EXPERTS: Names = (
    ("router.proj.weight", "experts.router.weight"),
    ("router.scale", "experts.router_scale"),
    ("router.per_expert_scale", "experts.expert_scale"),
    ("experts.down_proj", "experts.down"),
    ("pre_feedforward_layernorm_2.weight", "experts_norm.weight"),
    ("post_feedforward_layernorm_1.weight", "post_dense_norm.weight"),
    ("post_feedforward_layernorm_2.weight", "post_experts_norm.weight"),
)
_HF_IGNORED = {
    r"model\.(vision_tower|embed_vision)\..*": "the vision tower; only the text model is loaded",
    r"model\.(audio_tower|embed_audio)\..*": "the audio tower; only the text model is loaded",
    r".*rotary_emb\..*": "rotary frequencies follow from the config",
    r".*self_attn\.v_norm\.weight": "the norm of V has no weight",
}


def hf_layer(config: LayerConfig, block: str, path: str) -> Iterator[Rule]:
    """Rules for one layer of a Hugging Face checkpoint."""
    yield from copies(_HF_LAYER, block, path)
    if config.own_kv:
        yield from copies(_HF_KEY, block, path)
        if not config.value_is_key:
            yield from copies(_HF_VALUE, block, path)
    if config.per_layer_width:
        yield from copies(_HF_PER_LAYER, block, path)
    if config.moe is not None:
        yield from copies(_HF_EXPERTS, block, path)
        yield Split(f"{block}experts.gate_up_proj", (f"{path}experts.gate", f"{path}experts.up"), axis=1)


def hf_rules(config: Gemma4Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for Hugging Face safetensors.

    Args:
        config: the model.
        names: the checkpoint's tensor names: they decide between the prefix `model.` of the text-only class and
            `model.language_model.` of the conditional-generation one. Empty when writing (`model.`).
    """
    nested = "model.language_model."
    prefix = nested if any(name.startswith(nested) for name in names) else "model."

    def rules() -> Iterator[Rule]:
        yield Copy(f"{prefix}embed_tokens.weight", "target.embed.weight")
        if config.per_layer_width:
            yield Copy(f"{prefix}embed_tokens_per_layer.weight", "target.per_layer_embed.weight")
            yield Copy(f"{prefix}per_layer_model_projection.weight", "target.per_layer_proj.weight")
            yield Copy(f"{prefix}per_layer_projection_norm.weight", "target.per_layer_norm.weight")
        for i in range(config.num_layers):
            yield from hf_layer(config.layer(i), f"{prefix}layers.{i}.", f"target.layers_{i}.")
        yield Copy(f"{prefix}norm.weight", "target.norm.weight")
        if not config.tied_embeddings:
            yield Copy("lm_head.weight", "target.lm_head.weight")

    ignored: dict[str, str] = dict(_HF_IGNORED)
    if config.tied_embeddings:
        ignored[r"lm_head\.weight"] = "a second copy of the tied embedding table"
    for i in range(config.num_caches, config.num_layers):
        ignored[rf"{prefix}layers\.{i}\.self_attn\.(k|v)_(proj|norm)\.weight"] = (
            "the layer reads the keys and values of an earlier one"
        )
    return RuleTable(tuple(rules()), ignored, _shapes(config))


def copies(names: Names, block: str, path: str) -> Iterator[Rule]:
    """One `Copy` for each name of a block."""
    for source, parameter in names:
        yield Copy(f"{block}{source}", f"{path}{parameter}")


@functools.cache
def _shapes(config: Gemma4Config) -> Mapping[str, Shape]:
    return {path: tuple(leaf.shape) for path, leaf in flatten(parameter_shapes(config)).items()}
