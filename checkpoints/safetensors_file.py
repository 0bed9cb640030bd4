"""Reading a Hugging Face model directory: config.json, and one tensor at a time from its safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (registers bfloat16 with NumPy, in which safetensors returns BF16)
import numpy as np
from numpy.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from checkpoints.errors import FormatError
from checkpoints.json_file import read_object
from checkpoints.source import TensorInfo, aligned_empty

_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_FLOATS = ("F64", "F32", "F16", "BF16")
_BYTES_PER_STEP = 1 << 22
"""Tensors are converted this many bytes at a time, so that no second copy of a whole one is made."""


class SafetensorsDirectory:
    """A directory with config.json and model.safetensors, or the shards named in model.safetensors.index.json.

    Attributes:
        path: the directory.
        document: config.json.
        tensors: the tensor table, in the order of the names.

    Raises:
        FormatError: files are absent (all are listed), truncated or damaged, or the index and the shards disagree.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        config = self.path / "config.json"
        if not config.is_file():
            raise FormatError(f"{self.path}: not a model directory: there is no config.json")
        self.document = read_object(config, FormatError)
        self.tensors: dict[str, TensorInfo] = {}
        self._files: dict[str, Any] = {}
        names = self._file_names()
        if absent := [name for name in names if not (self.path / name).is_file()]:
            raise FormatError(f"{self.path}: incomplete: missing {', '.join(absent)}")
        for name in names:
            self._open(self.path / name)
        self.tensors = dict(sorted(self.tensors.items()))

    def can_read(self, name: str) -> bool:
        """Whether the tensor holds floating-point numbers of 16 bits or more."""
        return self.tensors[name].type in _FLOATS

    def read(self, name: str, dtype: DTypeLike) -> np.ndarray:
        """The tensor, converted to `dtype`."""
        info = self.tensors[name]
        out = aligned_empty(info.shape, dtype)
        if not info.shape:
            out[...] = self._files[name].get_tensor(name)
            return out
        rows = self._files[name].get_slice(name)
        step = max(1, _BYTES_PER_STEP * info.shape[0] // max(1, info.num_bytes))
        for start in range(0, info.shape[0], step):
            end = min(start + step, info.shape[0])
            out[start:end] = rows[start:end]
        return out

    def read_blocks(self, name: str) -> np.ndarray:
        """
        Raises:
            FormatError: always; these files have no block formats.
        """
        raise FormatError(f"{self.path}: {name} is {self.tensors[name].type}, which is no block format")

    def _file_names(self) -> list[str]:
        index = self.path / "model.safetensors.index.json"
        if not index.is_file():
            return ["model.safetensors"]
        weight_map = read_object(index, FormatError).get("weight_map")
        if not isinstance(weight_map, dict):
            raise FormatError(f"{index}: no weight_map that names the file of each tensor; download the file again")
        return sorted(set(weight_map.values()))

    def _open(self, path: Path) -> None:
        try:
            file = safe_open(path, framework="numpy")
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: truncated or not a safetensors file: {error}") from error
        for name in file.keys():  # noqa: SIM118  (not a dict: it has no iterator)
            if name in self.tensors:
                raise FormatError(f"{path}: tensor {name} is in another shard as well")
            view = file.get_slice(name)
            shape, kind = tuple(view.get_shape()), view.get_dtype()
            self.tensors[name] = TensorInfo(name, shape, kind, int(np.prod(shape)) * _BYTES.get(kind, 1))
            self._files[name] = file
