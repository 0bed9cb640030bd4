"""The released models' shapes, and what a file of one of them would say of itself.

Nothing has weights here: configs for tests by shapes, and for programs that are compiled without a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from checkpoints import OpenedCheckpoint
from checkpoints.quantization import QuantizeOptions
from checkpoints.quantization.mixes import MIXES
from checkpoints.quantization.plan import choose_types
from checkpoints.source import TensorInfo
from specjax.mesh.plan import AnyMesh
from specjax.models import gemma4, registry, step3_5
from specjax.models.qwen3_5 import MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.runtime.loading import Models, models_of

_QWEN: dict[str, Any] = {
    "vocab_size": 248320,
    "head_width": 256,
    "rope_width": 64,
    "rope_theta": 1e7,
    "conv_width": 4,
    "linear_key_heads": 16,
    "linear_key_width": 128,
    "linear_value_width": 128,
    "context_length": 262144,
    "mtp_layers": 1,
}
QWEN36_27B = Qwen35Config(
    **_QWEN,
    width=5120,
    layer_types=hybrid_layer_types(64),
    mlp_width=17408,
    num_heads=24,
    num_kv_heads=4,
    linear_value_heads=48,
)
QWEN36_35B_A3B = Qwen35Config(
    **_QWEN,
    width=2048,
    layer_types=hybrid_layer_types(40),
    mlp_width=0,
    num_heads=16,
    num_kv_heads=2,
    linear_value_heads=32,
    moe=MoEConfig(num_experts=256, experts_per_token=8, expert_width=512, shared_expert_width=512),
)

GEMMA4_31B = gemma4.Gemma4Config(
    vocab_size=262144,
    width=5376,
    layer_types=gemma4.interleaved_layer_types(60),
    num_heads=32,
    mlp_width=21504,
    sliding=gemma4.AttentionConfig(16, head_width=256, rope_theta=1e4, rope_width=256, window=1024),
    full=gemma4.AttentionConfig(4, head_width=512, rope_theta=1e6, rope_width=128),
    full_value_is_key=True,
)


def _step35_layer(index: int) -> step3_5.LayerConfig:
    return step3_5.LayerConfig(
        attention=step3_5.SLIDING_ATTENTION if index % 4 else step3_5.FULL_ATTENTION,
        sparse=3 <= index < 45,
        expert_limit=7.0 if index in (43, 44) else 0.0,
        mlp_limit=16.0 if index == 44 else 0.0,
    )


STEP_35_FLASH = step3_5.Step35Config(
    vocab_size=128896,
    width=4096,
    layers=tuple(map(_step35_layer, range(45))),
    heads=tuple(
        step3_5.HeadConfig(replace(_step35_layer(index), attention=step3_5.SLIDING_ATTENTION)) for index in (45, 46, 47)
    ),
    head_width=128,
    full=step3_5.AttentionConfig(num_heads=64, num_kv_heads=8, rope_width=64, rope_theta=5e6),
    sliding=step3_5.AttentionConfig(num_heads=96, num_kv_heads=8, rope_width=128, rope_theta=1e4),
    window=512,
    mlp_width=11264,
    moe=step3_5.MoEConfig(num_experts=288, experts_per_token=8, expert_width=1280, shared_expert_width=1280, scale=3.0),
    rope_factors=True,
    context_length=262144,
)

RELEASED: Mapping[str, Any] = {
    "Qwen3.6-27B": QWEN36_27B,
    "Qwen3.6-35B-A3B": QWEN36_35B_A3B,
    "Gemma-4-31B": GEMMA4_31B,
    "Step-3.5-Flash": STEP_35_FLASH,
}


def shape_of_27b(layers: int) -> Qwen35Config:
    """The widths of Qwen3.6-27B, which has 64 layers, with its MTP head."""
    return replace(QWEN36_27B, layer_types=hybrid_layer_types(layers))


@dataclass(frozen=True)
class Listing:
    """The tensor table of a file that is nowhere: a `TensorSource` for all that reads no values."""

    tensors: Mapping[str, TensorInfo]

    def can_read(self, name: str) -> bool:
        return name in self.tensors

    def read(self, name: str, dtype: DTypeLike) -> np.ndarray:
        raise TypeError(f"{name}: a listing has no values")

    def read_blocks(self, name: str) -> np.ndarray:
        raise TypeError(f"{name}: a listing has no values")


def opened(config: Any, kind: str, mesh: AnyMesh | None = None) -> Models:
    """What opening a file of a model would give that `specjax quantize` has made.

    Args:
        config: of the model.
        kind: the type of all matrices, or a mix of types such as "Q4_K_M".
        mesh: what it is loaded onto; None for one device.
    """
    family = registry.FAMILIES.of_config(config)
    rules = family.gguf.rules(config, ())
    tensors, head = [], []
    for rule in rules.rules:
        for name, shape in zip(rule.sources, rules.source_shapes(rule), strict=True):
            stored = next((rules.integers[path] for path in rule.paths if path in rules.integers), "F32")
            tensors.append(TensorInfo(name, shape, stored, 0))
            head += [name] if any(path.startswith("mtp.") for path in rule.paths) else []
    plan = choose_types(tensors, QuantizeOptions(kind, pure=kind not in MIXES), head, heads_per_kv=1, importance=False)
    listing = {each.source.name: replace(each.source, type=each.type, num_bytes=each.num_bytes) for each in plan}
    file = OpenedCheckpoint(family, config, Listing(listing), rules, Path(f"{kind}.gguf"), "gguf", {})
    return models_of(file, None, mesh, packed=True)
