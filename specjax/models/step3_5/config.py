"""Hyper-parameters of the Step-3.5 family (GGUF architecture `step35`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from checkpoints.mapping.rope_formula import Llama3Rope
from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.requirements import require, require_groups, require_kinds, require_pairs
from specjax.models.parts.split import Divisible

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"


@dataclass(frozen=True)
class AttentionConfig(Divisible):
    """What the layers of one kind of attention share.

    Attributes:
        num_heads, num_kv_heads: H and G.
        rope_width: how many of the N dimensions rotate (even).
        rope_theta: base of the rotary frequencies.
    """

    num_heads: int
    num_kv_heads: int
    rope_width: int
    rope_theta: float

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, "num_heads", shared=["num_kv_heads"])


@dataclass(frozen=True)
class LayerConfig:
    """The settings in which layers differ.

    Attributes:
        attention: `FULL_ATTENTION` or `SLIDING_ATTENTION`.
        sparse: experts instead of the dense MLP.
        expert_limit: bound of the SwiGLU of routed experts, see `pallas_kernels.matmul.swiglu`; 0 for none.
        mlp_limit: the same for the dense MLP or the shared expert.
    """

    attention: str
    sparse: bool
    expert_limit: float = 0.0
    mlp_limit: float = 0.0


@dataclass(frozen=True)
class HeadConfig:
    """An MTP head: its layer, and what it brings of its own instead of sharing the trunk's."""

    layer: LayerConfig
    own_embedding: bool = False
    own_output: bool = True
    own_norm: bool = True


@dataclass(frozen=True)
class Step35Config(Divisible):
    """Layers of full and of sliding attention, dense first and sparse later, and any number of chained MTP heads.

    Everything is hashable: a config is a static argument of jitted functions.

    Attributes:
        vocab_size: V.
        width: D, the residual stream.
        layers: one entry per trunk layer.
        heads: one entry per MTP head that the file has, in the order of the chain.
        head_width: N, for both kinds of attention.
        full, sliding: the two kinds of attention.
        window: how many positions a sliding layer sees, the token's own included.
        mlp_width: F of dense MLPs.
        moe: the expert branch of sparse layers; None if there are none.
        rope_factors: whether the parameters hold a divisor for each rotary frequency of full attention.
        rope_formula: the formula that these divisors follow, if it is known: GGUF files have only the numbers.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence the model was made for.

    Raises:
        ValueError: fields contradict each other.
    """

    vocab_size: int
    width: int
    layers: tuple[LayerConfig, ...]
    head_width: int
    full: AttentionConfig
    sliding: AttentionConfig
    window: int
    mlp_width: int
    moe: MoEConfig | None = None
    heads: tuple[HeadConfig, ...] = ()
    rope_factors: bool = False
    rope_formula: Llama3Rope | None = None
    norm_eps: float = 1e-5
    context_length: int = 32768

    def __post_init__(self) -> None:
        kinds = tuple(layer.attention for layer in self.all_layers)
        require_kinds(self, kinds, (FULL_ATTENTION, SLIDING_ATTENTION))
        for layer in self.all_layers:
            require(self, not layer.sparse or self.moe is not None, "a layer is sparse, but moe is None")
            require(self, layer.sparse or self.mlp_width > 0, "a layer is dense, but mlp_width is 0")
        for name, attention in (("full: ", self.full), ("sliding: ", self.sliding)):
            require_groups(self, attention.num_heads, attention.num_kv_heads, name)
            require_pairs(self, attention.rope_width, self.head_width, name)
        require(self, self.window > 0, f"window is {self.window}")
        formula = self.rope_formula is None or self.rope_factors
        require(self, formula, "rope_formula is given, but rope_factors is False")

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, padded=["mlp_width"], inner=["full", "sliding", "moe"])

    @property
    def layer_kinds(self) -> tuple[LayerConfig, ...]:
        """What distinguishes layers from each other."""
        return self.layers

    @property
    def all_layers(self) -> tuple[LayerConfig, ...]:
        """The trunk's layers and those of the heads."""
        return self.layers + tuple(head.layer for head in self.heads)

    @property
    def num_layers(self) -> int:
        """L, trunk layers without the MTP heads."""
        return len(self.layers)

    @property
    def mtp_layers(self) -> int:
        """How many MTP heads there are."""
        return len(self.heads)

    @property
    def tied_embeddings(self) -> bool:
        """The output head is a matrix of its own."""
        return False

    @property
    def architecture(self) -> str:
        return "step35"

    def attention(self, layer: LayerConfig) -> AttentionConfig:
        """The kind of attention that a layer has."""
        return self.full if layer.attention == FULL_ATTENTION else self.sliding
