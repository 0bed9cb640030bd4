"""Tiny random models of the Qwen3.5 family for tests of the state and of the loop."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import jax
import numpy as np

from specjax.models.protocol import Params
from specjax.models.qwen3_5 import FULL_ATTENTION, LINEAR_ATTENTION, MoEConfig, Qwen35Config, parameter_shapes


def make_config(**changes: Any) -> Qwen35Config:
    """One gated delta net, one attention layer and the MTP head, as narrow as they can be."""
    settings: dict[str, Any] = {
        "vocab_size": 64,
        "width": 32,
        "layer_types": (LINEAR_ATTENTION, FULL_ATTENTION),
        "mlp_width": 32,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_width": 16,
        "rope_width": 8,
        "rope_theta": 1e4,
        "conv_width": 4,
        "linear_key_heads": 2,
        "linear_value_heads": 4,
        "linear_key_width": 16,
        "linear_value_width": 8,
        "context_length": 512,
        "mtp_layers": 1,
    }
    return Qwen35Config(**(settings | changes))


DENSE = make_config()
MOE = make_config(moe=MoEConfig(num_experts=4, experts_per_token=2, expert_width=16, shared_expert_width=16))


@cache
def make_params(config: Qwen35Config, seed: int = 0) -> Params:
    """Random weights so large that every layer moves the output, and continuations do not run into short cycles."""
    rng = np.random.default_rng(seed)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        name = jax.tree_util.keystr(path)
        noise = rng.normal(size=leaf.shape).astype(np.float32)
        if "embed" in name:
            return noise
        if name.endswith("['a']"):
            return -np.exp(noise)
        if name.endswith("['dt_bias']"):
            return noise - 2
        return 1 + 0.1 * noise if leaf.ndim == 1 else noise / np.float32(math.sqrt(leaf.shape[-1]))

    return jax.tree.map_with_path(draw, parameter_shapes(config))


def relative_rms(got: Any, want: Any) -> float:
    """Root mean square of the difference over that of `want`; 0 for two arrays of zeros."""
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    assert got.shape == want.shape
    scale = float(np.sqrt(np.mean(want**2)))
    error = float(np.sqrt(np.mean((got - want) ** 2)))
    return error / scale if scale else error
