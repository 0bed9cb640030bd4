"""Hyper-parameters of plain decoder-only transformers (GGUF architectures `qwen3` and `llama`)."""

from __future__ import annotations

from dataclasses import dataclass

from checkpoints.mapping.rope_formula import Llama3Rope
from specjax.models.parts.requirements import require, require_groups
from specjax.models.parts.split import Divisible

ARCHITECTURES = ("qwen3", "llama")


@dataclass(frozen=True)
class DenseConfig(Divisible):
    """Full attention and a SwiGLU MLP in every layer.

    Attributes:
        architecture: "qwen3", whose q and k are RMS-normed per head, or "llama", whose are not.
        vocab_size, num_layers: V and L.
        width, mlp_width: D and F.
        num_heads, num_kv_heads, head_width: H, G, N; all N dimensions rotate.
        rope_theta: base of the rotary frequencies.
        rope_factors: whether the parameters hold a divisor for each rotary frequency.
        rope_formula: the formula that these divisors follow, if it is known: GGUF files have only the numbers.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence the model was made for.
        tied_embeddings: the output head is the embedding table.

    Raises:
        ValueError: the numbers contradict each other.
    """

    architecture: str
    vocab_size: int
    num_layers: int
    width: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    rope_theta: float = 1e4
    rope_factors: bool = False
    rope_formula: Llama3Rope | None = None
    norm_eps: float = 1e-6
    context_length: int = 32768
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        known = f"architecture is {self.architecture!r}; known are {ARCHITECTURES}"
        require(self, self.architecture in ARCHITECTURES, known)
        require(self, self.num_layers > 0, f"num_layers is {self.num_layers}; a model has at least one")
        require_groups(self, self.num_heads, self.num_kv_heads)
        require(self, self.head_width % 2 == 0, f"head_width ({self.head_width}) must be even to rotate")
        formula = self.rope_formula is None or self.rope_factors
        require(self, formula, "rope_formula is given, but rope_factors is False")

    def shard(self, parts: int) -> DenseConfig:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, "num_heads", padded=["mlp_width"], shared=["num_kv_heads"])

    @property
    def layer_kinds(self) -> tuple[None, ...]:
        """All layers are of one kind."""
        return (None,) * self.num_layers

    @property
    def mtp_layers(self) -> int:
        """This family has no heads that draft."""
        return 0

    @property
    def rope_width(self) -> int:
        """All dimensions of a head rotate."""
        return self.head_width

    @property
    def attention_bias(self) -> bool:
        """No projection has a bias."""
        return False

    @property
    def qk_norm(self) -> bool:
        """Whether q and k are RMS-normed per head."""
        return self.architecture == "qwen3"
