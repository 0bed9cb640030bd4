"""Hyper-parameters of the Qwen3.5 / Qwen3.6 family (GGUF architectures `qwen35` and `qwen35moe`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from pallas_kernels.gated_delta import HeadMap
from specjax.mesh.shards import exact
from specjax.models.parts.requirements import require, require_groups, require_kinds, require_one_head, require_pairs
from specjax.models.parts.split import Divisible

FULL_ATTENTION = "full_attention"
LINEAR_ATTENTION = "linear_attention"


@dataclass(frozen=True)
class MoEConfig(Divisible):
    """The expert branch of `qwen35moe`; a dense model has none."""

    num_experts: int
    experts_per_token: int
    expert_width: int
    shared_expert_width: int

    def shard(self, parts: int) -> MoEConfig:
        """See `Divisible.shard`. Every part chooses among all experts, and has some of them."""
        return self.divided(parts, padded=["shared_expert_width"], kept=["num_experts"])


@dataclass(frozen=True)
class Qwen35Config(Divisible):
    """A hybrid of gated delta nets and gated full attention, with at most one MTP block.

    Everything is hashable: a config is a static argument of jitted functions.

    Attributes:
        vocab_size: V.
        width: D, the residual stream.
        layer_types: one of `FULL_ATTENTION`, `LINEAR_ATTENTION` per trunk layer (the MTP block is not counted).
        mlp_width: F of the dense SwiGLU MLP (unused when `moe` is given).
        num_heads, num_kv_heads, head_width: H, G, N of the full-attention layers.
        rope_width: how many of the N dimensions rotate (even).
        rope_theta: base of the rotary frequencies.
        rope_sections: M-RoPE sections (time, height, width, extra) in frequency pairs. Text uses equal positions in
            every section, for which they do not matter; they are kept so that files can be written back.
        conv_width: W, taps of the causal convolution.
        linear_key_heads, linear_value_heads, linear_key_width, linear_value_width: Hk, Hv, Dk, Dv.
        norm_eps: epsilon of every RMSNorm and of the L2 norm of q and k in gated delta nets.
        context_length: the longest sequence the model was made for.
        tied_embeddings: the output head is the embedding table.
        mtp_layers: 0, or 1 when the MTP block is present.
        mtp_own_embedding, mtp_own_output, mtp_own_norm: whether the MTP block brings its own embedding table,
            output head and final norm instead of sharing the trunk's.
        moe: expert hyper-parameters, or None for the dense model.
    """

    vocab_size: int
    width: int
    layer_types: tuple[str, ...]
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    rope_width: int
    rope_theta: float
    conv_width: int
    linear_key_heads: int
    linear_value_heads: int
    linear_key_width: int
    linear_value_width: int
    norm_eps: float = 1e-6
    context_length: int = 32768
    rope_sections: tuple[int, ...] = (11, 11, 10, 0)
    tied_embeddings: bool = False
    mtp_layers: int = 0
    mtp_own_embedding: bool = False
    mtp_own_output: bool = False
    mtp_own_norm: bool = True
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        require_kinds(self, self.layer_types, (FULL_ATTENTION, LINEAR_ATTENTION))
        require_groups(self, self.num_heads, self.num_kv_heads)
        require(
            self,
            self.linear_value_heads % self.linear_key_heads == 0,
            f"linear_value_heads ({self.linear_value_heads}) must be a multiple of linear_key_heads"
            f" ({self.linear_key_heads})",
        )
        require_pairs(self, self.rope_width, self.head_width)
        require_one_head(self, self.mtp_layers)

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts, but not fewer heads of delta nets."""
        names = ["num_heads", "linear_key_heads", "linear_value_heads"]
        mlp = ["mlp_width"] if self.moe is None else []
        return self.divided(parts, *names, padded=mlp, shared=["num_kv_heads"], inner=["moe"])

    @property
    def value_groups(self) -> int:
        """How many groups of value heads stand side by side, of which each has a head for every key head."""
        return 1 if self.head_map == "grouped" else self.linear_value_heads // self.linear_key_heads

    @property
    def segments(self) -> Mapping[str, Sequence[int]]:
        """Queries, keys and values of delta nets side by side. A part has the value heads that read its key heads."""
        heads = (self.linear_value_heads // self.value_groups,) * self.value_groups
        values = tuple(count * self.linear_value_width for count in heads)
        keys = self.linear_key_heads * self.linear_key_width
        inputs = (keys, keys, *values)
        return {
            **dict.fromkeys(("qkv_proj", "conv"), inputs),
            **dict.fromkeys(("z_proj",) if exact() else ("z_proj", "out_proj"), values),
            **dict.fromkeys(("beta_proj", "alpha_proj", "a", "dt_bias"), heads),
        }

    @property
    def num_layers(self) -> int:
        """L, trunk layers without the MTP block."""
        return len(self.layer_types)

    @property
    def layer_kinds(self) -> tuple[str, ...]:
        """What distinguishes layers from each other."""
        return self.layer_types

    @property
    def architecture(self) -> str:
        return "qwen35" if self.moe is None else "qwen35moe"

    @property
    def head_map(self) -> HeadMap:
        """Which key head a value head reads, see `specjax.state.recurrent`. Files of this family come as "tiled"."""
        return "tiled"

    @property
    def conv_channels(self) -> int:
        """C, channels of the causal convolution: queries, keys, values."""
        return 2 * self.linear_key_heads * self.linear_key_width + self.linear_value_heads * self.linear_value_width


def hybrid_layer_types(num_layers: int, full_attention_interval: int = 4) -> tuple[str, ...]:
    """Layer i is full attention when (i + 1) is a multiple of the interval, else a gated delta net."""
    return tuple(
        FULL_ATTENTION if (i + 1) % full_attention_interval == 0 else LINEAR_ATTENTION for i in range(num_layers)
    )
