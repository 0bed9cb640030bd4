"""Writing a model as a GGUF that llama.cpp loads and runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, LlamaFileType, quants

from checkpoints.errors import CheckpointError
from checkpoints.family import Config, Families, Family
from checkpoints.gguf.ggml_types import GGML_TYPES, PLAIN_TYPES, GGMLType
from checkpoints.gguf.stream import TensorEntry, write_stream
from checkpoints.gguf.values import typed
from checkpoints.mapping.table import Progress
from checkpoints.mapping.transforms import Shape
from checkpoints.tokenizers.gguf import to_metadata
from checkpoints.tokenizers.tokenizer import TextTokenizer

WeightType = Literal["F32", "F16", "BF16", "Q8_0"]

FILE_TYPES: Mapping[str, LlamaFileType] = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}
"""The number by which a file says of what type most of its matrices are."""
_ALWAYS_F32 = ("_norm.weight", "_conv_base", "ssm_conv1d.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")
"""Small tensors on which much depends; llama.cpp's converter keeps them in F32 too."""


def write_gguf(
    path: str | Path,
    families: Families,
    config: Config,
    params: Mapping[str, Any],
    tokenizer: TextTokenizer,
    *,
    weights: WeightType = "F32",
    metadata: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Write a model; the file appears under its name only when it is complete.

    Args:
        path: the file to make or to replace.
        families: the known ones.
        config, params: the model.
        tokenizer: its vocabulary is padded with unused tokens to the model's V.
        weights: type of the matrices. Vectors, convolution taps and routers are F32 always, as are, under Q8_0,
            matrices whose rows are no multiple of 32 long.
        metadata: further keys, such as `general.name`, `general.license`; bool, int, float, str and lists of them.
        progress: called with bytes written and bytes in all.

    Raises:
        ConfigError, TensorMismatchError, TokenizerError: the model cannot be expressed; nothing is written then.
        CheckpointError: an unknown `weights`, or a metadata value of an unsupported type.
    """
    if weights not in get_args(WeightType):
        raise CheckpointError(f"cannot write {weights!r} weights; known are {', '.join(get_args(WeightType))}")
    family = families.of_config(config)
    keys = gguf_metadata(family, config, tokenizer, FILE_TYPES[weights]) | dict(metadata or {})
    table = family.gguf.rules(config, ())
    tensors, integers = list(table.unload(params)), table.integer_sources
    entries = [
        TensorEntry(name, shape, GGML_TYPES[integers[name]] if name in integers else _stored_type(name, shape, weights))
        for name, shape, _ in tensors
    ]
    data = (encode_tensor(make(), entry.type) for (_, _, make), entry in zip(tensors, entries, strict=True))
    write_stream(path, {key: typed(key, value) for key, value in keys.items()}, entries, data, progress=progress)


def encode_tensor(array: np.ndarray, kind: GGMLType) -> np.ndarray:
    """The bytes of a tensor in a plain type or one that the `gguf` package encodes, rounded as llama.cpp rounds."""
    if kind.name in PLAIN_TYPES:
        return np.ascontiguousarray(array, PLAIN_TYPES[kind.name])
    return quants.quantize(np.asarray(array, np.float32), GGMLQuantizationType(kind.code))


def stays_f32(name: str, shape: Shape) -> bool:
    """Whether llama.cpp wants a tensor in F32 whatever the others are: vectors, convolution taps, routers."""
    return len(shape) < 2 or name.endswith(_ALWAYS_F32)


def gguf_metadata(family: Family, config: Config, tokenizer: TextTokenizer, file_type: LlamaFileType) -> dict[str, Any]:
    """The metadata with which llama.cpp runs a model.

    Raises:
        ConfigError, TokenizerError: GGUF cannot express the model.
    """
    return {
        "general.architecture": config.architecture,
        "general.type": "model",
        "general.file_type": int(file_type),
        "general.quantization_version": GGML_QUANT_VERSION,
        **family.gguf.write_config(config),
        **to_metadata(tokenizer, config.vocab_size),
    }


def _stored_type(name: str, shape: Shape, weights: WeightType) -> GGMLType:
    small = stays_f32(name, shape)
    ragged = not small and shape[-1] % GGML_TYPES[weights].values != 0
    return GGML_TYPES["F32" if small or ragged else weights]
