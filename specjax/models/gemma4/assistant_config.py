"""Hyper-parameters of the Gemma 4 assistants (GGUF architecture `gemma4-assistant`), and which target they fit."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

from specjax.models.gemma4.config import (
    FULL_ATTENTION,
    KINDS,
    SLIDING_ATTENTION,
    AttentionConfig,
    Gemma4Config,
    LayerConfig,
    require_attention,
)
from specjax.models.parts.requirements import require
from specjax.models.parts.split import Divisible


@dataclass(frozen=True)
class CentroidHead:
    """A head that scores only some tokens: those of the centroids that fit the hidden state best.

    Attributes:
        num_centroids: the vocabulary is cut into so many groups of equal size, each with a centroid.
        selected: how many groups are scored.
    """

    num_centroids: int
    selected: int


@dataclass(frozen=True)
class Gemma4AssistantConfig(Divisible):
    """A drafter without keys and values: its layers read the caches of one target's last layers.

    Attributes:
        vocab_size: V.
        target_width: D of the target.
        width: D of the assistant.
        layer_types: the kind of each layer; it reads the last cache of its kind.
        num_heads, mlp_width: H and F of all layers.
        sliding, full: what layers of either kind share, in the assistant and in the target.
        centroids: the centroid head of the edge models, or None for a dense one.
        norm_eps: epsilon of every RMSNorm.
        context_length: the longest sequence the model was made for.
    """

    vocab_size: int
    target_width: int
    width: int
    layer_types: tuple[str, ...]
    num_heads: int
    mlp_width: int
    sliding: AttentionConfig
    full: AttentionConfig
    centroids: CentroidHead | None = None
    norm_eps: float = 1e-6
    context_length: int = 131072

    def __post_init__(self) -> None:
        require_attention(self, self.layer_types, self.num_heads, self.sliding, self.full)
        if (head := self.centroids) is not None:
            require(
                self,
                0 < head.selected <= head.num_centroids and self.vocab_size % head.num_centroids == 0,
                f"{head.selected} of {head.num_centroids} centroids are selected for {self.vocab_size} tokens; the"
                " centroids must divide the vocabulary, and no more than there are can be selected",
            )

    def shard(self, parts: int) -> Self:
        """See `Divisible.shard`. There may be fewer KV heads than parts. Every part chooses among all centroids."""
        return self.divided(parts, "num_heads", padded=["mlp_width"], inner=["sliding", "full"])

    @property
    def architecture(self) -> str:
        return "gemma4-assistant"

    @property
    def mtp_layers(self) -> int:
        """Layers of the drafter, which is all there is."""
        return len(self.layer_types)

    @property
    def layer_kinds(self) -> tuple[LayerConfig, ...]:
        """The configs of the layers."""
        attention = {SLIDING_ATTENTION: self.sliding, FULL_ATTENTION: self.full}
        return tuple(
            LayerConfig(attention[kind], self.num_heads, self.mlp_width, self.norm_eps, own_kv=False)
            for kind in self.layer_types
        )


def check_fit(target_config: Gemma4Config, config: Gemma4AssistantConfig) -> None:
    """Raise ValueError, with every mismatch in it, unless the assistant was made for such a target."""
    wrong = [
        f"{what}: {of_target} in the target, {expected} in the assistant"
        for what, of_target, expected in (
            ("vocabulary", target_config.vocab_size, config.vocab_size),
            ("target width", target_config.width, config.target_width),
        )
        if of_target != expected
    ]
    for kind in KINDS:
        if kind in config.layer_types and kind not in target_config.layer_types:
            wrong.append(f"{kind}: the target has no such layers")
    for name in ("sliding", "full"):
        of_target, expected = getattr(target_config, name), getattr(config, name)
        for field in fields(AttentionConfig):
            values = getattr(of_target, field.name), getattr(expected, field.name)
            if values[0] != values[1]:
                wrong.append(f"{field.name} of {name} layers: {values[0]} in the target, {values[1]} in the assistant")
    if wrong:
        raise ValueError("the assistant does not fit the target: " + "; ".join(wrong))
