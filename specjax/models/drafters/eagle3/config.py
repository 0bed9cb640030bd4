"""Hyper-parameters of EAGLE-3 drafters (GGUF architecture `eagle3`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from checkpoints.mapping.rope_formula import Llama3Rope
from specjax.models.parts.requirements import require, require_draft_vocabulary, require_groups, require_target_layers
from specjax.models.parts.split import Divisible


@dataclass(frozen=True)
class Eagle3Config(Divisible):
    """Layers over pairs of a token and a feature that is fused from several layers of the target.

    Attributes:
        vocab_size: V of the target.
        draft_vocab_size: the tokens that the drafter can draft.
        target_width: D of the target.
        target_layers: the layers of the target whose inputs are fused; L names the output of its last layer. Empty:
            the file does not say, and the usual three of the target are taken.
        width, mlp_width: D and F of the drafter.
        num_heads, num_kv_heads, head_width: H, G, N; all N dimensions rotate.
        windows: how many positions each layer sees, None for all; one entry for each layer.
        qk_norm: whether q and k are RMS-normed per head.
        rope_theta, rope_factors, rope_formula: as in `DenseConfig`.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence that the drafter was made for.
        norm_features: RMS-norm the features before they are fused: "all" of them as one vector, "each" layer's by
            itself, or None of them.
        norm_before_residual: the first layer adds to the normed feature, not to the feature.
        final_norm: what reads the last layer's output after the final norm: the output "head", "both" the head and the
            next step (EAGLE-3.1), or None of them.
        own_embedding, own_output: whether the file has an embedding table and an output head; else the target's are
            read.
        maps_tokens: whether the parameters hold which tokens those of the drafter are.

    Raises:
        ValueError: the numbers contradict each other.
    """

    vocab_size: int
    draft_vocab_size: int
    target_width: int
    target_layers: tuple[int, ...]
    width: int
    mlp_width: int
    num_heads: int
    num_kv_heads: int
    head_width: int
    windows: tuple[int | None, ...] = (None,)
    qk_norm: bool = False
    rope_theta: float = 1e4
    rope_factors: bool = False
    rope_formula: Llama3Rope | None = None
    norm_eps: float = 1e-6
    context_length: int = 2048
    norm_features: str | None = None
    norm_before_residual: bool = False
    final_norm: str | None = "head"
    own_embedding: bool = False
    own_output: bool = True
    maps_tokens: bool = True

    def __post_init__(self) -> None:
        require(self, len(self.windows) > 0, "windows is empty; a drafter has at least one layer")
        require_target_layers(self, self.target_layers)
        require_groups(self, self.num_heads, self.num_kv_heads)
        require(self, self.head_width % 2 == 0, f"head_width ({self.head_width}) must be even to rotate")
        require(
            self,
            self.norm_features in (None, "all", "each"),
            f"norm_features is {self.norm_features!r}; known are None, 'all' and 'each'",
        )
        require(
            self,
            self.final_norm in ("head", "both", None),
            f"final_norm is {self.final_norm!r}; known are 'head', 'both' and None",
        )
        require_draft_vocabulary(self, self.draft_vocab_size, self.vocab_size, maps_tokens=self.maps_tokens)

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts."""
        return self.divided(parts, "num_heads", padded=["mlp_width"], shared=["num_kv_heads"])

    @property
    def architecture(self) -> str:
        return "eagle3"

    @property
    def mtp_layers(self) -> int:
        """Layers of the drafter, which is all there is."""
        return len(self.windows)

    @property
    def heads_itself(self) -> bool:
        """Whether its own output head gives its logits."""
        return self.own_output

    @property
    def num_features(self) -> int:
        """How many layers of the target are fused."""
        return len(self.target_layers) or 3

    @property
    def rope_width(self) -> int:
        """All dimensions of a head rotate."""
        return self.head_width

    @property
    def attention_bias(self) -> bool:
        """No projection has a bias."""
        return False
