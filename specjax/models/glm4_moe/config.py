"""Hyper-parameters of GLM-4.5 and its successors (GGUF architecture `glm4moe`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from specjax.models.parts.moe import MoEConfig
from specjax.models.parts.requirements import require, require_groups, require_one_head, require_pairs
from specjax.models.parts.split import Divisible


@dataclass(frozen=True)
class Glm4MoeConfig(Divisible):
    """Full attention in every layer, a dense MLP in the first layers and experts in the others.

    Attributes:
        vocab_size, num_layers: V and L; the MTP block is not counted.
        dense_layers: how many layers, from the first on, have a dense MLP.
        width, mlp_width: D, and F of the dense MLPs.
        num_heads, num_kv_heads, head_width: H, G, N.
        rope_width, rope_theta: how many of the N dimensions rotate (even), and the base of their frequencies.
        moe: the experts.
        qk_norm: whether q and k are RMS-normed per head.
        attention_bias: whether q, k and v have biases.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence the model was made for.
        tied_embeddings: the output head is the embedding table.
        mtp_layers: 0, or 1 when the MTP block is present.
        mtp_own_embedding, mtp_own_output, mtp_own_norm: whether the MTP block brings its own embedding table,
            output head and final norm instead of sharing the trunk's.

    Raises:
        ValueError: the numbers contradict each other.
    """

    vocab_size: int
    num_layers: int
    dense_layers: int
    width: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    rope_width: int
    rope_theta: float
    moe: MoEConfig
    qk_norm: bool = False
    attention_bias: bool = False
    norm_eps: float = 1e-5
    context_length: int = 131072
    tied_embeddings: bool = False
    mtp_layers: int = 0
    mtp_own_embedding: bool = False
    mtp_own_output: bool = False
    mtp_own_norm: bool = True

    def __post_init__(self) -> None:
        require(self, self.num_layers > 0, f"num_layers is {self.num_layers}; a model has at least one")
        layers = f"dense_layers is {self.dense_layers}; there are {self.num_layers} layers"
        require(self, 0 <= self.dense_layers <= self.num_layers, layers)
        require_groups(self, self.num_heads, self.num_kv_heads)
        require_pairs(self, self.rope_width, self.head_width)
        require_one_head(self, self.mtp_layers)

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, "num_heads", padded=["mlp_width"], shared=["num_kv_heads"], inner=["moe"])

    @property
    def architecture(self) -> str:
        return "glm4moe"

    @property
    def shared_experts(self) -> int:
        """As how many experts the shared one is wide, by which files say its width. A part of a model has no number.

        Raises:
            ValueError: the width is no multiple.
        """
        number, rest = divmod(self.moe.shared_expert_width, self.moe.expert_width)
        wrong = f"the shared expert's width ({self.moe.shared_expert_width}) must be a multiple of that of the others"
        require(self, rest == 0, f"{wrong} ({self.moe.expert_width})")
        return number

    @property
    def layer_kinds(self) -> tuple[bool, ...]:
        """For each layer whether it has experts."""
        return tuple(index >= self.dense_layers for index in range(self.num_layers))
