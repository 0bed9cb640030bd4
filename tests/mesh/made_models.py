"""Random models whose sizes divide by four, also in blocks of 256, in files of all formats."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from small_model import agreeing_params, byte_tokenizer
from tiny_models import make_config

import checkpoints
from checkpoints.quantization import QuantizeOptions, prepare
from specjax.models import dense, gemma4, qwen3_5
from specjax.models.dense import DenseConfig
from specjax.models.drafters import dflash as block_drafters
from specjax.models.drafters import eagle3
from specjax.models.drafters.dflash import Convolution, DFlashConfig, MarkovHead, Selector
from specjax.models.drafters.eagle3 import Eagle3Config
from specjax.models.protocol import Params
from specjax.models.registry import FAMILIES

SIZES: dict[str, Any] = {"vocab_size": 272, "width": 64, "mlp_width": 128}
WIDE: dict[str, Any] = {"vocab_size": 272, "width": 256, "mlp_width": 1024}
"""Sizes of which a quarter still has whole blocks of Q4_K."""


def hybrid(wide: bool = False, **changes: Any) -> qwen3_5.Qwen35Config:
    """Delta nets with two value heads a key head, attention with fewer KV heads than four parts, and the MTP head."""
    delta, head = (256, 128) if wide else (32, 16)
    heads = {"head_width": head, "linear_key_width": delta, "linear_value_width": delta}
    counts = {"num_heads": 8, "num_kv_heads": 2, "linear_key_heads": 4, "linear_value_heads": 8}
    return make_config(**({"rope_width": 8} | counts | heads | (WIDE if wide else SIZES) | changes))


def plain(architecture: str, wide: bool = False, **changes: Any) -> DenseConfig:
    """Qwen3 or Llama, of two layers."""
    sizes = {"head_width": 128, **WIDE} if wide else {"head_width": 16, **SIZES}
    settings = {"architecture": architecture, "num_layers": 2, "num_heads": 8, "num_kv_heads": 2, "context_length": 512}
    return DenseConfig(**(settings | sizes | changes))


SLIDING = gemma4.AttentionConfig(4, 16, rope_theta=1e4, rope_width=16, window=8)
FULL = gemma4.AttentionConfig(2, 32, rope_theta=1e6, rope_width=8)
GEMMA: dict[str, Any] = {"num_heads": 8, "sliding": SLIDING, "full": FULL, "context_length": 512, **SIZES}


def gemma(**changes: Any) -> gemma4.Gemma4Config:
    """A sliding layer and a full one, twice."""
    return gemma4.Gemma4Config(layer_types=(gemma4.SLIDING_ATTENTION, gemma4.FULL_ATTENTION) * 2, **(GEMMA | changes))


def assistant(**changes: Any) -> gemma4.Gemma4AssistantConfig:
    """An assistant for `gemma`."""
    layers = (gemma4.SLIDING_ATTENTION, gemma4.FULL_ATTENTION)
    return gemma4.Gemma4AssistantConfig(target_width=SIZES["width"], layer_types=layers, **(GEMMA | changes))


def large_gemma(**changes: Any) -> gemma4.Gemma4Config:
    """Of a size of which a quarter still has whole blocks of Q4_K, and rows in multiples of 64."""
    attention = {
        "sliding": replace(SLIDING, head_width=64, rope_width=64),
        "full": replace(FULL, head_width=128, rope_width=32),
    }
    return gemma(vocab_size=512, width=256, mlp_width=1024, num_heads=16, **attention, **changes)


DRAFTER: dict[str, Any] = {
    "width": 64,
    "mlp_width": 128,
    "num_heads": 8,
    "num_kv_heads": 2,
    "head_width": 16,
    "target_layers": (0, 1, 2),
}


def eagle(**changes: Any) -> Eagle3Config:
    """An EAGLE-3 drafter for models of the usual sizes, which knows 90 tokens."""
    sizes = {"vocab_size": 272, "draft_vocab_size": 90, "target_width": 64}
    return Eagle3Config(**(sizes | DRAFTER | changes))


def dflash(**changes: Any) -> DFlashConfig:
    """A block drafter for the same models, of a layer that sees all and one that has a window."""
    sizes = {"vocab_size": 272, "draft_vocab_size": 272, "block_size": 5, "mask_token": 270, "rope_width": 16}
    return DFlashConfig(**(sizes | {"windows": (None, 6), "causal": (False, False)} | DRAFTER | changes))


def random_params(shapes: Params) -> Params:
    """Random weights under which every layer moves the output."""
    rng = np.random.default_rng(0)

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        if leaf.dtype == np.int32:  # which tokens a drafter knows, or an order of all
            return np.sort(rng.permutation(271)[: leaf.size]) if leaf.size < 271 else rng.permutation(leaf.size)
        noise = rng.normal(size=leaf.shape).astype(np.float32)
        if "embed" in jax.tree_util.keystr(path):
            return noise
        return 1 + 0.1 * noise if leaf.ndim == 1 else noise / np.float32(math.sqrt(leaf.shape[-1]))

    return jax.tree.map_with_path(draw, shapes)


def changing(params: Params) -> Params:
    """The parameters of a model with a tied table, in which a token would repeat itself but for these signs."""
    for norm in (params[branch]["norm"] for branch in ("target", "mtp") if branch in params):
        signs = np.random.default_rng(1).choice(np.array([-1, 1], np.float32), norm["weight"].shape)
        norm["weight"] = norm["weight"] * signs
    return params


def hybrid_params(config: qwen3_5.Qwen35Config) -> Params:
    """Weights with a head that is often right."""
    params = agreeing_params(config)
    return changing(params) if config.tied_embeddings else params


PARAMS: dict[type, Callable[[Any], Params]] = {
    DenseConfig: lambda config: random_params(dense.parameter_shapes(config)),
    qwen3_5.Qwen35Config: hybrid_params,
    gemma4.Gemma4Config: lambda config: changing(random_params(gemma4.parameter_shapes(config))),
    gemma4.Gemma4AssistantConfig: lambda config: random_params(gemma4.assistant_shapes(config)),
    Eagle3Config: lambda config: random_params(eagle3.parameter_shapes(config)),
    DFlashConfig: lambda config: random_params(block_drafters.parameter_shapes(config)),
}

MODELS: dict[str, Callable[[bool], Any]] = {
    "qwen3": lambda wide: plain("qwen3", wide),
    "llama": lambda wide: plain("llama", wide),
    "hybrid": lambda wide: hybrid(wide),
    "moe": lambda wide: hybrid(wide, moe=qwen3_5.MoEConfig(8, 2, 256 if wide else 32, 1024 if wide else 128)),
    "gemma4": lambda wide: gemma(full_value_is_key=True),
    "gemma4 edge": lambda wide: gemma(shared_kv_layers=2, wide_shared_mlp=True, per_layer_width=16),
    "gemma4 moe": lambda wide: gemma(moe=gemma4.MoEConfig(8, 2, 32)),
    "assistant": lambda wide: assistant(),
    "narrow": lambda wide: plain("qwen3", head_width=8),
    "odd": lambda wide: plain("llama", wide, vocab_size=271, mlp_width=1280 if wide else 90),
    "odd hybrid": lambda wide: hybrid(wide, vocab_size=271),
    "odd moe": lambda wide: hybrid(wide, vocab_size=271, moe=qwen3_5.MoEConfig(8, 2, 256 if wide else 32, 512)),
    "eagle3": lambda wide: eagle(),
    "qwen3 odd": lambda wide: plain("qwen3", wide, vocab_size=271),
    "eagle3 odd": lambda wide: eagle(vocab_size=271),
    "dspark": lambda wide: dflash(from_anchor=True, markov=MarkovHead(8), confidence="both"),
    "dflash2": lambda wide: dflash(selector=Selector(8, 6), convolution=Convolution(3, 8)),
    "exact dense": lambda wide: plain("qwen3", True, vocab_size=512),
    "exact hybrid": lambda wide: hybrid(True, vocab_size=512),
    "exact moe": lambda wide: hybrid(True, vocab_size=512, moe=qwen3_5.MoEConfig(8, 2, 256, 1024)),
    "exact gemma4": lambda wide: large_gemma(full_value_is_key=True),
    "exact gemma4 moe": lambda wide: large_gemma(moe=gemma4.MoEConfig(8, 2, 256)),
    "big": lambda wide: plain("qwen3", width=1024, mlp_width=4096, vocab_size=1024, head_width=64),
    "hybrid tied": lambda wide: hybrid(wide, tied_embeddings=True),
}


def write(folder: Path, name: str, weights: str) -> Path:
    """The GGUF file of a model with matrices of a type, made once in a folder."""
    path = folder / f"{name.replace(' ', '-')}-{weights}.gguf"
    if path.exists():
        return path
    config = MODELS[name](weights == "Q4_K")
    params = PARAMS[type(config)](config)
    plain = path.with_suffix(".plain.gguf")
    checkpoints.write_gguf(plain, FAMILIES, config, params, byte_tokenizer())
    return prepare(plain, path, FAMILIES, QuantizeOptions(weights, pure=True)).run()
