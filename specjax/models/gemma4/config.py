"""Hyper-parameters of Gemma 4 (GGUF architecture `gemma4`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float

from specjax.layers.rope import rope_frequencies
from specjax.models.parts.requirements import require, require_groups, require_kinds, require_pairs
from specjax.models.parts.split import Divisible

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"
KINDS = (SLIDING_ATTENTION, FULL_ATTENTION)


@dataclass(frozen=True)
class AttentionConfig(Divisible):
    """The settings that all layers of one kind share. They are the same for an assistant and its target.

    Attributes:
        num_kv_heads, head_width: G, N.
        rope_theta: base of the rotary frequencies.
        rope_width: how many of the N dimensions rotate; half of them are taken from the front of either half of the
            head, and the frequencies are those of the full width ("proportional" RoPE).
        window: how many positions a row sees, itself included; None sees all.
    """

    num_kv_heads: int
    head_width: int
    rope_theta: float
    rope_width: int
    window: int | None = None

    def __post_init__(self) -> None:
        require_pairs(self, self.rope_width, self.head_width)
        require(self, self.head_width % 2 == 0, f"head_width ({self.head_width}) must be even")
        require(self, self.window is None or self.window > 0, f"window is {self.window}")

    def frequencies(self) -> Float[np.ndarray, "N/2"]:
        """Radians per position of every pair; 0 for the pairs that do not rotate."""
        frequencies = rope_frequencies(self.rope_theta, self.head_width)
        frequencies[self.rope_width // 2 :] = 0
        return frequencies

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, shared=["num_kv_heads"])


@dataclass(frozen=True)
class MoEConfig(Divisible):
    """The expert branch of the 26B-A4B form; it stands beside the dense MLP."""

    num_experts: int
    experts_per_token: int
    expert_width: int

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. Every part chooses among all experts, and has some of them."""
        return self.divided(parts, kept=["num_experts"])


@dataclass(frozen=True)
class LayerConfig:
    """One layer; layers with equal configs have parameters of equal shapes.

    Attributes:
        attention: what its kind determines.
        num_heads: H.
        mlp_width: F of the dense MLP.
        norm_eps: epsilon of every RMSNorm.
        own_kv: whether it writes keys and values; otherwise it reads those of another layer.
        value_is_key: V is the projection of K, before K is normed and rotated.
        per_layer_width: width of the layer's own input embedding; 0: it has none.
        moe: the expert branch, or None.
    """

    attention: AttentionConfig
    num_heads: int
    mlp_width: int
    norm_eps: float
    own_kv: bool = True
    value_is_key: bool = False
    per_layer_width: int = 0
    moe: MoEConfig | None = None


@dataclass(frozen=True)
class Gemma4Config(Divisible):
    """Sliding and full attention layers, which differ in head width, KV heads and RoPE.

    Everything is hashable: a config is a static argument of jitted functions.

    Attributes:
        vocab_size: V.
        width: D, the residual stream.
        layer_types: one of `SLIDING_ATTENTION`, `FULL_ATTENTION` per layer.
        num_heads: H of all layers.
        mlp_width: F of the dense MLP.
        sliding, full: what the layers of either kind share.
        full_value_is_key: full layers have no V projection; V is the projection of K.
        shared_kv_layers: so many layers at the end have no keys and values of their own: each reads those of the last
            earlier layer of its kind.
        wide_shared_mlp: the layers without own keys and values have MLPs twice as wide.
        per_layer_width: width of the per-layer input embeddings; 0: there are none.
        moe: expert hyper-parameters, or None for a dense model.
        logit_cap: logits are cap * tanh(logits / cap); None leaves them.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence the model was made for.
        tied_embeddings: the output head is the embedding table.
    """

    vocab_size: int
    width: int
    layer_types: tuple[str, ...]
    num_heads: int
    mlp_width: int
    sliding: AttentionConfig
    full: AttentionConfig
    full_value_is_key: bool = False
    shared_kv_layers: int = 0
    wide_shared_mlp: bool = False
    per_layer_width: int = 0
    moe: MoEConfig | None = None
    logit_cap: float | None = 30.0
    norm_eps: float = 1e-6
    context_length: int = 131072
    tied_embeddings: bool = True

    def __post_init__(self) -> None:
        require_attention(self, self.layer_types, self.num_heads, self.sliding, self.full)
        shared = self.shared_kv_layers
        require(
            self,
            0 <= shared < self.num_layers,
            f"shared_kv_layers is {shared} of {self.num_layers} layers; it must leave at least one with its own",
        )
        missing = sorted(set(self.layer_types) - set(self.layer_types[: self.num_layers - shared]))
        require(self, not missing, f"no layer has keys and values that the {missing} layers could share")

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, "num_heads", padded=["mlp_width"], inner=["sliding", "full", "moe"])

    @property
    def num_layers(self) -> int:
        return len(self.layer_types)

    @property
    def num_caches(self) -> int:
        """Layers with keys and values of their own; they come first."""
        return self.num_layers - self.shared_kv_layers

    @property
    def architecture(self) -> str:
        return "gemma4"

    @property
    def mtp_layers(self) -> int:
        """0: the drafter of this family comes in a file of its own."""
        return 0

    def attention(self, kind: str) -> AttentionConfig:
        """What the layers of a kind share."""
        return self.full if kind == FULL_ATTENTION else self.sliding

    @property
    def layer_kinds(self) -> tuple[LayerConfig, ...]:
        """The configs of the layers."""

        def layer(kind: str, own_kv: bool) -> LayerConfig:
            return LayerConfig(
                attention=self.attention(kind),
                num_heads=self.num_heads,
                mlp_width=self.mlp_width if own_kv or not self.wide_shared_mlp else 2 * self.mlp_width,
                norm_eps=self.norm_eps,
                own_kv=own_kv,
                value_is_key=self.full_value_is_key and kind == FULL_ATTENTION,
                per_layer_width=self.per_layer_width,
                moe=self.moe,
            )

        return tuple(layer(kind, index < self.num_caches) for index, kind in enumerate(self.layer_types))

    def cache_of(self, index: int) -> int:
        """The layer whose keys and values a layer reads: itself, or the last of its kind that has its own."""
        return index if index < self.num_caches else self.last_cache(self.layer_types[index])

    def last_cache(self, kind: str) -> int:
        """The last layer of a kind that has keys and values of its own."""
        return max(i for i in range(self.num_caches) if self.layer_types[i] == kind)


def require_attention(
    config: object, layer_types: tuple[str, ...], num_heads: int, sliding: AttentionConfig, full: AttentionConfig
) -> None:
    """Kinds of layers are known, query heads fit KV heads, and only sliding layers have a window."""
    require_kinds(config, layer_types, KINDS)
    require(config, sliding.window is not None, "sliding layers need a window")
    require(config, full.window is None, f"full layers have a window of {full.window}; they see all positions")
    require_groups(config, num_heads, sliding.num_kv_heads, f"{SLIDING_ATTENTION}: ")
    require_groups(config, num_heads, full.num_kv_heads, f"{FULL_ATTENTION}: ")


def interleaved_layer_types(num_layers: int, interval: int = 6) -> tuple[str, ...]:
    """Layer i is full attention when (i + 1) is a multiple of the interval, else sliding."""
    return tuple(FULL_ATTENTION if (i + 1) % interval == 0 else SLIDING_ATTENTION for i in range(num_layers))
