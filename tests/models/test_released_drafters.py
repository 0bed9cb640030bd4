"""Released drafters: their config.json is read, and their tensors pair up with parameters one for one.

No checkpoint was downloaded. The comment at each drafter says where its numbers are published, and what is published
about the size of its file, which the shapes have to add up to.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import pytest
from parameter_count import count

from checkpoints import ConfigError
from checkpoints.source import TensorInfo
from specjax.models.drafters.dflash import hf as dflash_hf
from specjax.models.drafters.dflash import parameters as dflash_parameters
from specjax.models.drafters.eagle3 import hf as eagle3_hf
from specjax.models.drafters.eagle3 import parameters as eagle3_parameters

Shapes = dict[str, tuple[int, ...]]
OTHER_TYPES = {"d2t": ("I64", 8), "t2d": ("BOOL", 1)}
MASKED_9B: dict[str, Any] = {
    "block_size": 16,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 8, 15, 22, 29]},
}
MASKED_27B: dict[str, Any] = {
    "block_size": 16,
    "dflash_config": {"mask_token_id": 248070, "target_layer_ids": [1, 16, 31, 46, 61]},
}


@dataclass(frozen=True)
class Released:
    """The numbers of a drafter.

    Attributes:
        document: what config.json has, as far as it is read.
        tensors: by name, without types.
        stored: how many numbers the file holds, tables that only name tokens included.
    """

    document: Mapping[str, Any]
    tensors: Shapes
    stored: int


class Table:
    """A checkpoint of which only names, shapes and types are known."""

    def __init__(self, shapes: Shapes) -> None:
        self.tensors = {}
        for name, shape in shapes.items():
            kind, width = OTHER_TYPES.get(name, ("BF16", 2))
            self.tensors[name] = TensorInfo(name, shape, kind, width * math.prod(shape))

    def can_read(self, name: str) -> bool:
        return self.tensors[name].type == "BF16"


def sizes(width: int, mlp: int, vocab: int, layers: int = 1, heads: int = 32, head: int = 128) -> dict[str, Any]:
    """The keys of config.json that every drafter has; all of these have 8 heads of keys and values."""
    return {
        "hidden_size": width,
        "intermediate_size": mlp,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": head,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }


def layer(document: Mapping[str, Any], reads: int, prefix: str) -> Shapes:
    """Attention over vectors that are `reads` times as wide as the layer's output, and an MLP."""
    width, mlp, head = document["hidden_size"], document["intermediate_size"], document["head_dim"]
    queries, keys = document["num_attention_heads"] * head, document["num_key_value_heads"] * head
    shapes: Shapes = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (queries, reads * width),
        "self_attn.k_proj": (keys, reads * width),
        "self_attn.v_proj": (keys, reads * width),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (mlp, width),
        "mlp.up_proj": (mlp, width),
        "mlp.down_proj": (width, mlp),
    }
    return {f"{prefix}.{name}.weight": shape for name, shape in shapes.items()}


def eagle(document: Mapping[str, Any]) -> Shapes:
    """An EAGLE-3 in the plain form, with a vocabulary of its own and the target's embedding table."""
    width, drafts = document["hidden_size"], document["draft_vocab_size"]
    return {
        **layer(document, 2, "midlayer"),
        "midlayer.hidden_norm.weight": (width,),
        "fc.weight": (width, 3 * width),
        "norm.weight": (width,),
        "lm_head.weight": (drafts, width),
        "d2t": (drafts,),
        "t2d": (document["vocab_size"],),
    }


def block(document: Mapping[str, Any], features: int) -> Shapes:
    """A DFlash with the target's embedding table and output head."""
    width, head = document["hidden_size"], document["head_dim"]
    shapes: Shapes = {
        "fc.weight": (width, features * width),
        "hidden_norm.weight": (width,),
        "norm.weight": (width,),
    }
    for prefix in (f"layers.{index}" for index in range(document["num_hidden_layers"])):
        shapes |= layer(document, 1, prefix)
        shapes |= {f"{prefix}.self_attn.{side}_norm.weight": (head,) for side in "qk"}
    return shapes


def spark(document: Mapping[str, Any], features: int) -> Shapes:
    """A DSpark with tables of its own, as DeepSeek's trainer writes it."""
    width, vocab, rank = document["hidden_size"], document["vocab_size"], document["markov_rank"]
    return {
        **block(document, features),
        "embed_tokens.weight": (vocab, width),
        "lm_head.weight": (vocab, width),
        "markov_head.markov_w1.weight": (vocab, rank),
        "markov_head.markov_w2.weight": (vocab, rank),
        "confidence_head.proj.weight": (1, width + rank),
        "confidence_head.proj.bias": (1,),
    }


def second(document: Mapping[str, Any]) -> Shapes:
    """A DFlash 2: convolutions around attention and MLP, and a selector."""
    width, vocab, special = document["hidden_size"], document["vocab_size"], document["dflash_config"]
    kernel, groups, rank = special["conv_kernel_size"], width // special["conv_group_size"], special["selector_rank"]
    shapes = block(document, len(special["target_layer_ids"]))
    for prefix in (
        f"layers.{index}.{place}_conv"
        for index in range(document["num_hidden_layers"])
        for place in ("attention", "mlp")
    ):
        shapes[f"{prefix}.base_kernel"] = (2, kernel, width)
        shapes[f"{prefix}.kernel_projection.weight"] = (2 * kernel * groups, width)
    return {
        **shapes,
        "candidate_selector.hidden_projection.weight": (rank, width),
        "candidate_selector.predecessor_codebook": (vocab, rank),
        "candidate_selector.successor_codebook": (vocab, rank),
    }


# AngelSlim/Qwen3-4B_eagle3: config.json as a test of another program quotes it, and the number of its parameters as a
# test of a third one does.
QWEN3_4B_EAGLE = {
    "architectures": ["Eagle3LlamaForCausalLM"],
    "model_type": "llama",
    **sizes(2560, 9728, 151936),
    "draft_vocab_size": 32000,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}
# An EAGLE-3 for Llama 3.1 8B: SpecForge's example config for its trainer. The config.json of
# yuhuili/EAGLE3-LLaMA3.1-Instruct-8B was not found. The published file of this form, lmsys/sglang-EAGLE3-LLaMA3.1-
# Instruct-8B, has 0.85 GB, and these numbers are 0.85 GB in 16 bits.
LLAMA_8B_EAGLE = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    **sizes(4096, 14336, 128256),
    "draft_vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
}
# z-lab/Qwen3.5-9B-DFlash: config and inventory (58 tensors of bfloat16, 2.1 GB) in notes on porting it.
QWEN35_9B_DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    **sizes(4096, 12288, 248320, layers=5),
    **MASKED_9B,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
}
# z-lab/Qwen3.6-27B-DFlash: config as tests of several programs quote it, and the file has 3460432504 bytes, 6264 of
# which are the header.
QWEN36_27B_DFLASH = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    **sizes(5120, 17408, 248320, layers=5),
    **MASKED_27B,
    "layer_types": ["sliding_attention"] * 4 + ["full_attention"],
    "sliding_window": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
}
# deepseek-ai/dspark_qwen3_4b_block7: DeepSpec's training config for Qwen3-4B, and that model's sizes; the file has 2.79
# GB, which are these numbers in 16 bits.
QWEN3_4B_DSPARK = {
    "architectures": ["Qwen3DSparkModel"],
    "model_type": "qwen3",
    **sizes(2560, 9728, 151936, layers=5),
    "block_size": 7,
    "mask_token_id": 151669,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "markov_rank": 256,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
}
# satgeze/Qwen3.6-27B-DSpark: blocks of 15, what config.json copies from the target (of whose heads a quarter rotates),
# and 8.80 GB are published. Its other sizes, layers and mask are taken to be those of z-lab's drafter for this target,
# from which its training started; they make 8.80 GB.
QWEN36_27B_DSPARK = {
    **QWEN3_4B_DSPARK,
    **sizes(5120, 17408, 248320, layers=5),
    "block_size": 15,
    **MASKED_27B["dflash_config"],
    "partial_rotary_factor": 0.25,
    "rope_parameters": {
        "rope_theta": 1e7,
        "rope_type": "default",
        "partial_rotary_factor": 0.25,
        "mrope_interleaved": True,
        "mrope_section": [11, 11, 10],
    },
    "attn_output_gate": True,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 48,
}
# The DFlash 2 of Muse Glimmer 30B: config.json and the header of its file, from the tests of z-lab/dflash. Two keys are
# apart, which are refused.
MUSE_DFLASH2 = {
    "architectures": ["DFlash2DraftModel"],
    "model_type": "qwen3",
    "is_causal": False,
    **sizes(6656, 19968, 202048, layers=5),
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"},
    "dflash_config": {
        "block_size": 16,
        "conv_group_size": 16,
        "conv_kernel_size": 2,
        "mask_token_id": 201818,
        "selector_rank": 256,
        "selector_top_k": 16,
        "target_layer_ids": [1, 13, 25, 37, 49],
    },
}
MUSE_LOGITS = {"final_logit_softcapping": 20.0, "output_multiplier": 0.19611613513818404}

EAGLES = {
    "Qwen3-4B": Released(QWEN3_4B_EAGLE, eagle(QWEN3_4B_EAGLE), 218_429_056),
    "Llama-3.1-8B": Released(LLAMA_8B_EAGLE, eagle(LLAMA_8B_EAGLE), 424_689_664 + 32000 + 128256),
}
BLOCKS = {
    "Qwen3.5-9B": Released(QWEN35_9B_DFLASH, block(QWEN35_9B_DFLASH, 5), 1_048_626_432),
    "Qwen3.6-27B": Released(QWEN36_27B_DFLASH, block(QWEN36_27B_DFLASH, 5), (3_460_432_504 - 6264) // 2),
    "Qwen3-4B-DSpark": Released(QWEN3_4B_DSPARK, spark(QWEN3_4B_DSPARK, 5), 1_393_133_569),
    "Qwen3.6-27B-DSpark": Released(QWEN36_27B_DSPARK, spark(QWEN36_27B_DSPARK, 5), 4_400_155_137),
    "Muse-DFlash-2": Released(MUSE_DFLASH2, second(MUSE_DFLASH2), 5_544_319_488 // 2),
}


def assert_one_for_one(released: Released, hf: Any, parameters: Any) -> Any:
    """The config, after its parameters were found to be the tensors; which tokens `t2d` names is in `d2t` too."""
    assert hf.recognizes(released.document)
    table = Table(released.tensors)
    config = hf.config_from_hf(released.document, table.tensors, "config.json")
    hf.hf_rules(config, table.tensors).check(table, "model.safetensors")
    shapes = parameters.parameter_shapes(config)
    used = {name: shape for name, shape in released.tensors.items() if name != "t2d"}
    assert len(jax.tree.leaves(shapes)) == len(used)
    assert count(shapes) == sum(math.prod(shape) for shape in used.values())
    assert sum(math.prod(shape) for shape in released.tensors.values()) == released.stored
    return config


@pytest.mark.parametrize("name", EAGLES)
def test_released_eagle3_drafters_are_read(name: str) -> None:
    config = assert_one_for_one(EAGLES[name], eagle3_hf, eagle3_parameters)
    assert config.draft_vocab_size == 32000
    assert config.maps_tokens
    assert config.own_output
    assert not config.own_embedding
    assert not config.target_layers  # the target's usual three


@pytest.mark.parametrize("name", BLOCKS)
def test_released_block_drafters_are_read(name: str) -> None:
    released = BLOCKS[name]
    config = assert_one_for_one(released, dflash_hf, dflash_parameters)
    special = {**released.document, **released.document.get("dflash_config", {})}
    assert config.target_layers == tuple(index + 1 for index in special["target_layer_ids"])
    assert (config.block_size, config.mask_token) == (special["block_size"], special["mask_token_id"])
    assert config.rope_width == 128
    assert config.from_anchor == ("markov_rank" in special)
    assert config.own_output == config.own_embedding == ("markov_rank" in special)
    slides = [kind == "sliding_attention" for kind in released.document.get("layer_types", [""] * 5)]
    assert config.windows == tuple(2048 if each else None for each in slides)


@pytest.mark.parametrize(
    ("released", "gigabytes", "digits"),
    [
        (EAGLES["Llama-3.1-8B"], 0.85, 2),
        (BLOCKS["Qwen3.5-9B"], 2.1, 1),
        (BLOCKS["Qwen3-4B-DSpark"], 2.79, 2),
        (BLOCKS["Qwen3.6-27B-DSpark"], 8.80, 2),
    ],
    ids=["Llama-3.1-8B", "Qwen3.5-9B", "Qwen3-4B-DSpark", "Qwen3.6-27B-DSpark"],
)
def test_files_are_as_large_as_published(released: Released, gigabytes: float, digits: int) -> None:
    """Where the number of parameters is not published."""
    stored = sum(info.num_bytes for info in Table(released.tensors).tensors.values())
    assert round(stored / 1e9, digits) == gigabytes


def test_the_inventory_of_a_dflash_has_58_tensors() -> None:
    assert len(BLOCKS["Qwen3.5-9B"].tensors) == 58


def test_logits_that_are_scaled_for_the_drafter_alone_are_refused() -> None:
    """They are in the published config of Muse Glimmer's DFlash 2."""
    document = {**MUSE_DFLASH2, "dflash_config": {**MUSE_DFLASH2["dflash_config"], **MUSE_LOGITS}}
    with pytest.raises(ConfigError, match=r"output_multiplier, final_logit_softcapping: not supported"):
        dflash_hf.config_from_hf(document, Table(second(MUSE_DFLASH2)).tensors, "config.json")
