"""Hyper-parameters of Qwen3-Next (GGUF architecture `qwen3next`)."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.gated_delta import HeadMap
from specjax.models.qwen3_5.config import Qwen35Config


@dataclass(frozen=True)
class Qwen3NextConfig(Qwen35Config):
    """A sparse model of Qwen3.5's architecture, which computes the same but for the order of value heads.

    There are no `rope_sections`. `mlp_width` is written in files, and means nothing.
    """

    rope_sections: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.moe is None:
            raise ValueError("Qwen3NextConfig: moe is None; every layer of this family has experts")
        if self.rope_sections:
            raise ValueError(f"Qwen3NextConfig: rope_sections is {self.rope_sections}; this family has none")

    @property
    def architecture(self) -> str:
        return "qwen3next"

    @property
    def head_map(self) -> HeadMap:
        """Grouped, in files of both kinds."""
        return "grouped"
