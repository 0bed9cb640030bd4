"""A small model file with a vocabulary, whose MTP head is often right: for tests of what stands on top of the loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from gguf import TokenType
from tiny_models import make_config, make_params

import checkpoints
from checkpoints import TextTokenizer, Vocabulary
from checkpoints.tokenizers import gguf as tokenizer_gguf
from checkpoints.tokenizers.vocabulary import BYTE_ALPHABET
from specjax.models.protocol import Params
from specjax.models.qwen3_5 import Qwen35Config
from specjax.models.registry import FAMILIES

END = 257
CONFIG = make_config(vocab_size=272, context_length=128, linear_value_width=16)


def byte_tokenizer() -> TextTokenizer:
    """A token per byte, "de", and one that ends a text; the model's last 14 ids stand for nothing."""
    by_byte = {byte: char for char, byte in BYTE_ALPHABET.items()}
    tokens = (*(by_byte[byte] for byte in range(256)), "de", "<|endoftext|>")
    types = (TokenType.NORMAL,) * END + (TokenType.CONTROL,)
    return tokenizer_gguf.from_vocabulary(Vocabulary(tokens, types, (("d", "e"),), "qwen35", {"eos": END}))


def agreeing_params(config: Qwen35Config) -> Params:
    """Random weights under which the last token decides most, for the trunk and for the head alike."""
    params = jax.tree.map(np.array, make_params(config))
    width = config.width
    for layer in (params["target"]["layers_0"], params["target"]["layers_1"], params["mtp"]["block"]):
        for mixer, projection in (("delta_net", "out_proj"), ("attention", "o_proj"), ("mlp", "down_proj")):
            if mixer in layer:
                layer[mixer][projection]["weight"] *= 0.25
    noise = 0.3 * params["mtp"]["eh_proj"]["weight"][:, width:]
    params["mtp"]["eh_proj"]["weight"] = np.concatenate([np.eye(width, dtype=np.float32), noise], axis=1)
    params["mtp"]["enorm"]["weight"] = np.ones(width, np.float32)
    params["mtp"]["norm"]["weight"] = params["target"]["norm"]["weight"]
    return params


def write_small_model(path: Path, *, mtp: bool = True, context_length: int = CONFIG.context_length) -> Path:
    """Write the model as an F32 GGUF."""
    config, params = replace(CONFIG, mtp_layers=int(mtp), context_length=context_length), agreeing_params(CONFIG)
    checkpoints.write_gguf(path, FAMILIES, config, params if mtp else {"target": params["target"]}, byte_tokenizer())
    return path
