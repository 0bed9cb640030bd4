"""Writing a model as a GGUF that llama.cpp loads and runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType, quants

from checkpoints.atomic import replaced
from checkpoints.errors import CheckpointError
from checkpoints.families import Config, family_of_config
from checkpoints.mapping import Progress
from checkpoints.tokenizer import TextTokenizer
from checkpoints.tokenizer_gguf import to_metadata
from checkpoints.transforms import Shape

WeightType = Literal["F32", "F16", "BF16", "Q8_0"]

_FILE_TYPES: Mapping[str, LlamaFileType] = {
    "F32": LlamaFileType.ALL_F32,
    "F16": LlamaFileType.MOSTLY_F16,
    "BF16": LlamaFileType.MOSTLY_BF16,
    "Q8_0": LlamaFileType.MOSTLY_Q8_0,
}
_Q8_0_BLOCK = 32
_ALWAYS_F32 = ("_norm.weight", "ssm_conv1d.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight")
"""Small tensors on which much depends; llama.cpp's converter keeps them in F32 too."""


def write_gguf(
    path: str | Path,
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
    family = family_of_config(config)
    keys: dict[str, Any] = {
        "general.type": "model",
        "general.file_type": int(_FILE_TYPES[weights]),
        "general.quantization_version": GGML_QUANT_VERSION,
        **family.config_to_gguf(config),
        **to_metadata(tokenizer, config.vocab_size),
        **(metadata or {}),
    }
    table = family.gguf_rules(config, ())
    tensors, integers = list(table.unload(params)), table.integer_sources
    types = [
        GGMLQuantizationType.I32 if name in integers else _stored_type(name, shape, weights)
        for name, shape, _ in tensors
    ]
    with replaced(Path(path)) as temporary, _opened(temporary, config.architecture) as writer:
        for key, value in keys.items():
            _add(writer, key, value)
        sizes = []
        for (name, shape, _), kind in zip(tensors, types, strict=True):
            stored = quants.quant_shape_to_byte_shape(shape, kind) if kind == GGMLQuantizationType.Q8_0 else shape
            item = np.dtype(_NUMPY_TYPES[kind])
            sizes.append(int(np.prod(stored)) * item.itemsize)
            writer.add_tensor_info(name, stored, item, sizes[-1], kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        for (_, _, make), kind, size in zip(tensors, types, sizes, strict=True):
            writer.write_tensor_data(_encode(make(), kind))
            done += size
            if progress is not None:
                progress(done, sum(sizes))


_NUMPY_TYPES: Mapping[GGMLQuantizationType, Any] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: np.uint16,
    GGMLQuantizationType.Q8_0: np.uint8,
    GGMLQuantizationType.I32: np.int32,
}


@contextmanager
def _opened(path: Path, architecture: str) -> Iterator[GGUFWriter]:
    writer = GGUFWriter(path, architecture)
    try:
        yield writer
    finally:
        writer.close()


def _stored_type(name: str, shape: Shape, weights: WeightType) -> GGMLQuantizationType:
    small = len(shape) < 2 or name.endswith(_ALWAYS_F32)
    ragged = weights == "Q8_0" and shape[-1] % _Q8_0_BLOCK != 0
    return GGMLQuantizationType.F32 if small or ragged else GGMLQuantizationType[weights]


def _encode(array: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    if kind == GGMLQuantizationType.I32:
        return np.asarray(array, np.int32)
    data = quants.quantize(np.asarray(array, np.float32), kind)
    return np.ascontiguousarray(data).view(_NUMPY_TYPES[kind])


def _add(writer: GGUFWriter, key: str, value: Any) -> None:
    is_list = isinstance(value, (list, tuple))
    items = list(value) if is_list else [value]
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
    }
    for scalar, add in adders.items():
        if items and all(isinstance(item, scalar) for item in items):
            if is_list:
                writer.add_array(key, items)
            else:
                add(key, value)
            return
    raise CheckpointError(
        f"metadata key {key}: cannot write {value!r}: it is neither a bool, int, float or str, nor a list of one type"
    )
