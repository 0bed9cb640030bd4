"""Tiny random models and vocabularies, and a way to damage the files made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import jax
import jax.numpy as jnp
import numpy as np
from gguf import GGMLQuantizationType, TokenType

import checkpoints
from checkpoints import TextTokenizer, Vocabulary
from checkpoints.mapping.tree import flatten, unflatten
from checkpoints.tokenizers import gguf as tokenizer_gguf
from checkpoints.tokenizers.vocabulary import BYTE_ALPHABET
from specjax.models.qwen3_5 import MoEConfig, Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.gguf import gguf_rules
from specjax.models.registry import FAMILIES

MERGES = (("d", "e"), ("de", "f"), ("Ġ", "def"), ("Ġ", "a"), ("Ã", "©"), ("1", "2"))
END, TURN_END, USER_DEFINED = 262, 263, 264


def make_tokenizer(pre: str = "qwen35") -> TextTokenizer:
    """256 bytes, six merges, two control tokens, one user-defined token."""
    by_byte = {byte: char for char, byte in BYTE_ALPHABET.items()}
    tokens = [by_byte[byte] for byte in range(256)] + [left + right for left, right in MERGES]
    tokens += ["<|endoftext|>", "<|im_end|>", "<think>"]
    types = [TokenType.NORMAL] * END + [TokenType.CONTROL] * 2 + [TokenType.USER_DEFINED]
    return tokenizer_gguf.from_vocabulary(
        Vocabulary(tuple(tokens), tuple(types), MERGES, pre, {"eos": END, "padding": END})
    )


def make_config(moe: bool = False, **changes: Any) -> Qwen35Config:
    settings: dict[str, Any] = {
        "vocab_size": 272,
        "width": 64,
        "layer_types": hybrid_layer_types(3, 3),
        "mlp_width": 0 if moe else 96,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_width": 16,
        "rope_width": 8,
        "rope_theta": 1e6,
        "rope_sections": (2, 1, 1, 0),
        "conv_width": 4,
        "linear_key_heads": 2,
        "linear_value_heads": 4,
        "linear_key_width": 32,
        "linear_value_width": 32,
        "context_length": 512,
        "mtp_layers": 1,
        "moe": MoEConfig(4, 2, 32, 64) if moe else None,
    }
    return Qwen35Config(**(settings | changes))


@functools.cache
def make_params(config: Qwen35Config, seed: int = 0) -> dict[str, Any]:
    """Random parameters that F32, F16, BF16 and Q8_0 hold exactly: integers over 128, the largest in each block."""
    rng = np.random.default_rng(seed)

    def values(path: str, shape: tuple[int, ...]) -> jax.Array:
        x = rng.integers(-127, 128, shape).astype(np.float32) / 128
        x.reshape(-1)[::32] = 127 / 128
        if path.endswith("norm.weight"):
            x = 1 + x / 4
        if path.endswith(".a"):
            x = -np.exp(x)
        return jnp.asarray(x)

    return unflatten({path: values(path, shape) for path, shape in gguf_rules(config).shapes.items()})


def write_tiny_gguf(path: Path, config: Qwen35Config, **arguments: Any) -> Path:
    checkpoints.write_gguf(path, FAMILIES, config, make_params(config), make_tokenizer(), **arguments)
    return path


def assert_same(got: Mapping[str, Any], want: Mapping[str, Any], rtol: float = 0) -> None:
    """Both trees have the same paths, and equal values at each."""
    flat_got, flat_want = flatten(got), flatten(want)
    assert flat_got.keys() == flat_want.keys()
    for path, array in flat_want.items():
        np.testing.assert_allclose(np.asarray(flat_got[path], np.float32), array, rtol=rtol, err_msg=path)


def edit_gguf(
    source: Path,
    target: Path,
    *,
    drop: Collection[str] = (),
    add: Mapping[str, np.ndarray] | None = None,
    retype: Mapping[str, tuple[np.ndarray, GGMLQuantizationType]] | None = None,
    drop_keys: Collection[str] = (),
    keys: Mapping[str, Any] | None = None,
    tensors_per_part: int = 0,
) -> Path:
    """Copy a GGUF with the gguf package, changing tensors and keys (texts, counts, floats or lists) on the way."""
    reader = gguf.GGUFReader(source)
    new_keys = dict(keys or {})
    architecture = new_keys.pop("general.architecture", reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=tensors_per_part)
    add_value: dict[type, Callable] = {
        str: writer.add_string,
        int: writer.add_uint32,
        float: writer.add_float32,
        list: writer.add_array,
    }
    for key, value in new_keys.items():
        add_value[type(value)](key, value)
    for key, entry in reader.fields.items():
        skipped = key.startswith("GGUF.") or key == "general.architecture" or key in drop_keys or key in new_keys
        if not skipped:
            sub_type = entry.types[-1] if len(entry.types) > 1 else None
            writer.add_key_value(key, entry.contents(), entry.types[0], sub_type)
    for tensor in reader.tensors:
        if tensor.name in drop:
            continue
        data, kind = (retype or {}).get(tensor.name, (np.array(tensor.data), tensor.tensor_type))
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    for name, array in (add or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
