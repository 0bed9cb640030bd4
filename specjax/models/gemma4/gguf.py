"""GGUF files of Gemma 4.

Sources: llama.cpp `src/models/gemma4.cpp` (what is read, and its defaults), `conversion/gemma.py` (what is written).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from checkpoints.errors import ConfigError
from checkpoints.family import FileFormat
from checkpoints.mapping.rule import Copy, Rule, Split
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import IDENTITY, Shape
from checkpoints.source import TensorInfo
from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    LayerConfig,
    MoEConfig,
)
from specjax.models.gemma4.parameters import parameter_shapes
from specjax.models.parts.gguf import ROPE_FACTORS, Keys
from specjax.models.parts.names import Names, copies, shapes, weights

_LAYER: Names = (
    *weights(
        {
            "attn_norm": "attn_norm",
            "attn_q": "attention.q_proj",
            "attn_q_norm": "attention.q_norm",
            "attn_output": "attention.o_proj",
            "post_attention_norm": "post_attn_norm",
            "ffn_norm": "mlp_norm",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
            "post_ffw_norm": "post_mlp_norm",
        }
    ),
    ("layer_output_scale.weight", "scale", IDENTITY),
)
_KEY = weights({"attn_k": "attention.k_proj", "attn_k_norm": "attention.k_norm"})
_VALUE = weights({"attn_v": "attention.v_proj"})
_PER_LAYER = weights(
    {
        "inp_gate": "per_layer_gate",
        "proj": "per_layer_proj",
        "post_norm": "post_per_layer_norm",
    }
)
_EXPERTS: Names = (
    *weights(
        {
            "ffn_gate_inp": "experts.router",
            "pre_ffw_norm_2": "experts_norm",
            "post_ffw_norm_1": "post_dense_norm",
            "post_ffw_norm_2": "post_experts_norm",
        }
    ),
    ("ffn_gate_inp.scale", "experts.router_scale", IDENTITY),
    ("ffn_down_exps.weight", "experts.down", IDENTITY),
    ("ffn_down_exps.scale", "experts.expert_scale", IDENTITY),
)
_UNROTATED = 1e30
"""Divisor of the frequency of a pair that does not rotate, as the converter writes it."""
REQUIRED = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.key_length_swa",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
)
_ROTATING = 4
"""One pair in so many rotates in full layers: the metadata do not say, and `rope_freqs.weight` is checked for it."""
_DEFAULT_ROPE_THETA = 1e6
_DEFAULT_SLIDING_ROPE_THETA = 1e4


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4Config:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = Keys(metadata, where)
    keys.need(*REQUIRED)
    layer_types = layer_types_of(keys)
    num_layers, shared = len(layer_types), keys.get("attention.shared_kv_layers", 0)
    widths = keys.per_layer("feed_forward_length", num_layers)
    wide = len(set(widths)) > 1
    if wide and widths != [widths[0]] * (num_layers - shared) + [2 * widths[0]] * shared:
        raise ValueError(f"feed_forward_length {widths} is not that of {shared} last layers twice as wide")
    experts = keys.get("expert_count", 0)
    first_full = layer_types.index(FULL_ATTENTION)
    return Gemma4Config(
        vocab_size=keys.vocab_size(tensors),
        width=keys.get("embedding_length"),
        layer_types=layer_types,
        num_heads=keys.get("attention.head_count"),
        mlp_width=widths[0],
        sliding=attention_of(keys, layer_types, SLIDING_ATTENTION),
        full=attention_of(keys, layer_types, FULL_ATTENTION),
        full_value_is_key=f"blk.{first_full}.attn_v.weight" not in tensors,
        shared_kv_layers=shared,
        wide_shared_mlp=wide,
        per_layer_width=keys.get("embedding_length_per_layer_input", 0),
        moe=MoEConfig(experts, keys.get("expert_used_count"), keys.get("expert_feed_forward_length"))
        if experts
        else None,
        logit_cap=keys.get("final_logit_softcapping"),
        norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        context_length=keys.get("context_length"),
        tied_embeddings="output.weight" not in tensors,
    )


def config_to_gguf(config: Gemma4Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    shared = config.shared_kv_layers
    keys = attention_keys(config.layer_types, config.num_heads, config.sliding, config.full) | {
        "block_count": config.num_layers,
        "context_length": config.context_length,
        "embedding_length": config.width,
        "embedding_length_per_layer_input": config.per_layer_width,
        "vocab_size": config.vocab_size,
        "feed_forward_length": config.mlp_width,
        "attention.shared_kv_layers": shared,
        "attention.layer_norm_rms_epsilon": float(config.norm_eps),
    }
    if config.wide_shared_mlp:
        keys["feed_forward_length"] = [config.layer(i).mlp_width for i in range(config.num_layers)]
    if config.logit_cap is not None:
        keys["final_logit_softcapping"] = float(config.logit_cap)
    if config.moe is not None:
        keys["expert_count"] = config.moe.num_experts
        keys["expert_used_count"] = config.moe.experts_per_token
        keys["expert_feed_forward_length"] = config.moe.expert_width
    return {f"gemma4.{key}": value for key, value in keys.items()}


def layer_types_of(keys: Keys) -> tuple[str, ...]:
    """The kind of each layer."""
    pattern = keys.per_layer("attention.sliding_window_pattern", keys.get("block_count"))
    return tuple(SLIDING_ATTENTION if sliding else FULL_ATTENTION for sliding in pattern)


def attention_of(keys: Keys, layer_types: tuple[str, ...], kind: str) -> AttentionConfig:
    """What the layers of a kind share."""
    kv_heads = keys.per_layer("attention.head_count_kv", len(layer_types))
    own = {heads for heads, other in zip(kv_heads, layer_types, strict=True) if other == kind}
    if len(own) != 1:
        raise ValueError(f"attention.head_count_kv of {kind} layers is {sorted(own)}; it must be one number")
    if kind == FULL_ATTENTION:
        width = keys.get("attention.key_length")
        theta = keys.get("rope.freq_base", _DEFAULT_ROPE_THETA)
        return AttentionConfig(own.pop(), width, theta, 2 * (width // (2 * _ROTATING)))
    width = keys.get("attention.key_length_swa")
    theta = keys.get("rope.freq_base_swa", _DEFAULT_SLIDING_ROPE_THETA)
    rotating = keys.get("rope.dimension_count_swa", width)
    if rotating != width:
        raise ValueError(f"rope.dimension_count_swa is {rotating}; sliding heads of {width} rotate as a whole")
    return AttentionConfig(own.pop(), width, theta, width, keys.get("attention.sliding_window"))


def attention_keys(
    layer_types: tuple[str, ...], num_heads: int, sliding: AttentionConfig, full: AttentionConfig
) -> dict[str, Any]:
    """The metadata of the attention layers, without the architecture's prefix.

    Raises:
        ConfigError: full layers rotate another part of their heads than llama.cpp's converter assumes, or sliding ones
            not all of theirs.
    """
    if full.rope_width != 2 * (full.head_width // (2 * _ROTATING)) or sliding.rope_width != sliding.head_width:
        raise ConfigError(
            f"GGUF cannot say that {full.rope_width} of {full.head_width} dimensions rotate in full layers and"
            f" {sliding.rope_width} of {sliding.head_width} in sliding ones; it must be a quarter, and all"
        )
    is_sliding = [kind == SLIDING_ATTENTION for kind in layer_types]
    return {
        "attention.head_count": num_heads,
        "attention.head_count_kv": [sliding.num_kv_heads if s else full.num_kv_heads for s in is_sliding],
        "attention.key_length": full.head_width,
        "attention.value_length": full.head_width,
        "attention.key_length_swa": sliding.head_width,
        "attention.value_length_swa": sliding.head_width,
        "attention.sliding_window": sliding.window,
        "attention.sliding_window_pattern": is_sliding,
        "rope.dimension_count": full.head_width,
        "rope.dimension_count_swa": sliding.head_width,
        "rope.freq_base": float(full.rope_theta),
        "rope.freq_base_swa": float(sliding.rope_theta),
    }


@dataclass(frozen=True)
class RopeDivisors:
    """`rope_freqs.weight`: divisors of the full layers' rotary frequencies. They hold no parameters: the config says
    how many pairs rotate, and the tensor is checked against it, and written from it."""

    attention: AttentionConfig
    source: str = ROPE_FACTORS

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def paths(self) -> tuple[str, ...]:
        """Empty: the tensor gives no parameter."""
        return ()

    @property
    def keeps_rows(self) -> bool:
        """False: the tensor gives no parameter."""
        return False

    @property
    def moves_values(self) -> bool:
        """False: there are no values to be moved."""
        return False

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """A divisor for each pair of a head."""
        del shapes
        return [(self.attention.head_width // 2,)]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        """No parameters. Raises `ConfigError` if the divisors are not those of the config."""
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
    yield from copies(_LAYER, block, path)
    if config.own_kv:
        yield from copies(_KEY, block, path)
        if not config.value_is_key:
            yield from copies(_VALUE, block, path)
    if config.per_layer_width:
        yield from copies(_PER_LAYER, block, path)
    if config.moe is not None:
        yield from copies(_EXPERTS, block, path)
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
    return RuleTable(tuple(rules()), ignored, shapes(parameter_shapes, config))


GGUF = FileFormat(("gemma4",), config_from_gguf, config_to_gguf, gguf_rules)
