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
from checkpoints.mapping.rule import Rule, Split, copies, weights
from checkpoints.mapping.table import RuleTable
from checkpoints.mapping.transforms import Shape
from checkpoints.source import TensorInfo
from specjax.models.gemma4.assistant_config import Gemma4AssistantConfig
from specjax.models.gemma4.config import FULL_ATTENTION, SLIDING_ATTENTION, AttentionConfig, Gemma4Config, MoEConfig
from specjax.models.gemma4.parameters import parameter_shapes
from specjax.models.parts import gguf
from specjax.models.parts.fields import Fields
from specjax.models.parts.rules import rule_table

LAYER = (
    *weights(
        {
            "attn_norm": "attn_norm",
            "attn_q_norm": "attention.q_norm",
            "attn_k_norm": "attention.k_norm",
            "post_attention_norm": "post_attn_norm",
            "ffn_norm": "mlp_norm",
            "post_ffw_norm": "post_mlp_norm",
            "inp_gate": "per_layer_gate",
            "proj": "per_layer_proj",
            "post_norm": "post_per_layer_norm",
            "ffn_gate_inp": "experts.router",
            "pre_ffw_norm_2": "experts_norm",
            "post_ffw_norm_1": "post_dense_norm",
            "post_ffw_norm_2": "post_experts_norm",
        }
    ),
    *gguf.ATTENTION,
    *gguf.MLP,
    *copies(
        {
            "layer_output_scale.weight": "scale",
            "ffn_gate_inp.scale": "experts.router_scale",
            "ffn_down_exps.weight": "experts.down",
            "ffn_down_exps.scale": "experts.expert_scale",
        }
    ),
    Split(("ffn_gate_up_exps.weight",), ("experts.gate", "experts.up"), axis=1),
    *copies({"ffn_gate_exps.weight": "experts.gate", "ffn_up_exps.weight": "experts.up"}),
)
"""Some files have gates and ups of experts apart."""
_PER_LAYER = weights(
    {
        "per_layer_token_embd": "target.per_layer_embed",
        "per_layer_model_proj": "target.per_layer_proj",
        "per_layer_proj_norm": "target.per_layer_norm",
    }
)
_UNROTATED = 1e30
"""Divisor of the frequency of a pair that does not rotate, as the converter writes it."""
_ROTATING = 4
"""One pair in so many rotates in full layers: the metadata do not say, and `rope_freqs.weight` is checked for it."""
COMMON = {
    "width": "embedding_length",
    "num_heads": "attention.head_count",
    "norm_eps": "attention.layer_norm_rms_epsilon",
    "context_length": "context_length",
}
"""Keys of targets and of assistants."""
_FIELDS = Fields(
    Gemma4Config,
    {
        **COMMON,
        "shared_kv_layers": "attention.shared_kv_layers",
        "per_layer_width": "embedding_length_per_layer_input",
        "logit_cap": "final_logit_softcapping",
    },
    {"shared_kv_layers": 0, "per_layer_width": 0, "logit_cap": None},
)
_EXPERTS = Fields(
    MoEConfig,
    {
        "num_experts": "expert_count",
        "experts_per_token": "expert_used_count",
        "expert_width": "expert_feed_forward_length",
    },
)
_FULL = Fields(
    AttentionConfig,
    {"head_width": "attention.key_length", "rope_theta": "rope.freq_base"},
    {"rope_theta": 1e6},
)
_SLIDING = Fields(
    AttentionConfig,
    {
        "head_width": "attention.key_length_swa",
        "rope_theta": "rope.freq_base_swa",
        "window": "attention.sliding_window",
    },
    {"rope_theta": 1e4},
)
_KV_HEADS, _PATTERN = "attention.head_count_kv", "attention.sliding_window_pattern"
_ROTATING_SLIDING = "rope.dimension_count_swa"


def config_from_gguf(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], where: str) -> Gemma4Config:
    """The config of a GGUF file; see `FileFormat.read_config`."""
    keys = gguf.Keys(metadata, where)
    has_experts = keys.get("expert_count", 0) > 0
    common, widths = read_common(keys, _FIELDS, tensors, *(_EXPERTS.required if has_experts else ()))
    layer_types, shared = common["layer_types"], common["shared_kv_layers"]
    wide = len(set(widths)) > 1
    if wide and widths != [widths[0]] * (len(layer_types) - shared) + [2 * widths[0]] * shared:
        raise ValueError(f"feed_forward_length {widths} is not that of {shared} last layers twice as wide")
    return Gemma4Config(
        **common,
        full_value_is_key=f"blk.{layer_types.index(FULL_ATTENTION)}.attn_v.weight" not in tensors,
        wide_shared_mlp=wide,
        moe=MoEConfig(**keys.read(_EXPERTS)) if has_experts else None,
        tied_embeddings="output.weight" not in tensors,
    )


def config_to_gguf(config: Gemma4Config) -> dict[str, Any]:
    """The metadata that llama.cpp needs to build this model, `general.architecture` apart.

    Raises:
        ConfigError: GGUF cannot express it.
    """
    keys = common_keys(config, _FIELDS)
    if config.wide_shared_mlp:
        keys["feed_forward_length"] = [layer.mlp_width for layer in config.layer_kinds]
    if config.moe is not None:
        keys |= _EXPERTS.write(config.moe)
    return gguf.metadata_of(config, keys)


def read_common(
    keys: gguf.Keys, fields: Fields, tensors: Mapping[str, TensorInfo], *needed: str
) -> tuple[dict[str, Any], list[int]]:
    """The fields that targets and assistants have in common, and the width of each layer's MLP.

    Args:
        keys, tensors: the file's metadata and its tensor table.
        fields: `COMMON` and others.
        needed: further keys that must be there.
    """
    attention = (*_FULL.required, *_SLIDING.required, _KV_HEADS, _PATTERN)
    keys.need("block_count", "feed_forward_length", *fields.required, *attention, *needed)
    keys.need_plain_attention()
    num_layers = keys.get("block_count")
    kinds = tuple(SLIDING_ATTENTION if slides else FULL_ATTENTION for slides in keys.per_layer(_PATTERN, num_layers))
    kv_heads = list(zip(keys.per_layer(_KV_HEADS, num_layers), kinds, strict=True))
    widths = keys.per_layer("feed_forward_length", num_layers)

    def kv_heads_of(kind: str) -> int:
        own = {heads for heads, other in kv_heads if other == kind}
        if len(own) != 1:
            raise ValueError(f"{_KV_HEADS} of {kind} layers is {sorted(own)}; it must be one number")
        return own.pop()

    full, sliding = keys.read(_FULL), keys.read(_SLIDING)
    full_width, width = full["head_width"], sliding["head_width"]
    if (rotating := keys.get(_ROTATING_SLIDING, width)) != width:
        raise ValueError(f"{_ROTATING_SLIDING} is {rotating}; sliding heads of {width} rotate as a whole")
    return {
        **keys.read(fields),
        "vocab_size": keys.vocab_size(tensors),
        "layer_types": kinds,
        "mlp_width": widths[0],
        "sliding": AttentionConfig(kv_heads_of(SLIDING_ATTENTION), rope_width=width, **sliding),
        "full": AttentionConfig(kv_heads_of(FULL_ATTENTION), rope_width=_rotating(full_width), **full),
    }, widths


def common_keys(config: Gemma4Config | Gemma4AssistantConfig, fields: Fields) -> dict[str, Any]:
    """The keys that `read_common` reads, without the architecture's prefix.

    Raises:
        ConfigError: full layers rotate another part of their heads than llama.cpp's converter assumes, or sliding ones
            not all of theirs.
    """
    full, sliding = config.full, config.sliding
    if full.rope_width != _rotating(full.head_width) or sliding.rope_width != sliding.head_width:
        raise ConfigError(
            f"GGUF cannot say that {full.rope_width} of {full.head_width} dimensions rotate in full layers and"
            f" {sliding.rope_width} of {sliding.head_width} in sliding ones; it must be a quarter, and all"
        )
    slides = [kind == SLIDING_ATTENTION for kind in config.layer_types]
    return {
        "block_count": len(slides),
        **fields.write(config),
        "vocab_size": config.vocab_size,
        "feed_forward_length": config.mlp_width,
        **_FULL.write(full),
        **_SLIDING.write(sliding),
        _KV_HEADS: [sliding.num_kv_heads if s else full.num_kv_heads for s in slides],
        _PATTERN: slides,
        "attention.value_length": full.head_width,
        "attention.value_length_swa": sliding.head_width,
        "rope.dimension_count": full.head_width,
        _ROTATING_SLIDING: sliding.head_width,
    }


def _rotating(head_width: int) -> int:
    """How many dimensions of a head rotate in full layers."""
    return 2 * (head_width // (2 * _ROTATING))


@dataclass(frozen=True)
class RopeDivisors(Rule):
    """`rope_freqs.weight`: divisors of the full layers' rotary frequencies. They hold no parameters: the config says
    how many pairs rotate, and the tensor is checked against it, and written from it."""

    attention: AttentionConfig

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
                f"{gguf.ROPE_FACTORS} does not say that the first {rotating.sum()} of {len(stored)} pairs rotate, which"
                " is how this architecture is built; convert the model again"
            )
        return []

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        """The divisors of the config."""
        del parameters
        pairs = np.arange(self.attention.head_width // 2)
        yield np.where(pairs < self.attention.rope_width // 2, 1, _UNROTATED).astype(np.float32)


def rope_divisors(config: Gemma4Config | Gemma4AssistantConfig) -> Rule:
    """The rule for the divisors of a model."""
    return RopeDivisors((gguf.ROPE_FACTORS,), (), config.full)


def gguf_rules(config: Gemma4Config, names: Collection[str] = ()) -> RuleTable:
    """Rules for a GGUF file; the names of its tensors tell whether gates and ups of experts are fused."""
    ignored = {
        rf"blk\.{i}\.attn_(k|v|k_norm)\.weight": "the layer reads the keys and values of an earlier one"
        for i in range(config.num_caches, config.num_layers)
    }
    rules = (*_PER_LAYER, rope_divisors(config), *gguf.trunk(LAYER, config.num_layers))
    return rule_table(parameter_shapes, config, rules, names, ignored)


GGUF = FileFormat(("gemma4",), config_from_gguf, config_to_gguf, gguf_rules)
