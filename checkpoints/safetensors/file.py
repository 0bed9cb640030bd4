"""Reading a Hugging Face model directory: config.json, and one tensor at a time from its safetensors files."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike
from safetensors import SafetensorError, safe_open

from checkpoints.errors import FormatError
from checkpoints.json_file import read_object
from checkpoints.region import Region
from checkpoints.source import ALL, FileRange, Only, TensorInfo, aligned_empty

_FLOATS = ("F64", "F32", "F16", "BF16")
DTYPES: Mapping[str, DTypeLike] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
"""Types whose values NumPy knows."""

TYPE_OF_DTYPE: Mapping[np.dtype, str] = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
"""Their names, by what NumPy calls them."""

_WHOLE = "model.safetensors"
_HEAD, _EMBEDDING = "lm_head.weight", re.compile(r"model\.(language_model\.)?embed_tokens\.weight")

_BYTES_PER_STEP = 1 << 22
"""Tensors are converted this many bytes at a time, so that no second copy of a whole one is made."""


class SafetensorsFiles:
    """Safetensors files that together hold one set of tensors.

    Attributes:
        tensors: the tensor table, in the order of the names.

    Raises:
        FormatError: a file is truncated or damaged, or a tensor is in two of them.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        self.tensors: dict[str, TensorInfo] = {}
        self._ranges: dict[str, FileRange] = {}
        for path in paths:
            self._open(path)
        self.tensors = dict(sorted(self.tensors.items()))

    def can_read(self, name: str) -> bool:
        """Whether the tensor holds floating-point numbers of 16 bits or more."""
        return self.tensors[name].type in _FLOATS

    def read(self, name: str, dtype: DTypeLike, only: Only = ALL) -> np.ndarray:
        """The tensor, converted to `dtype`."""
        info, stored = self.tensors[name], np.dtype(DTYPES[self.tensors[name].type])
        region = Region.of(info.shape, only, 1, stored.itemsize)
        out, width = aligned_empty(region.shape, dtype), region.shape[-1] if info.shape else 1
        rows = out.reshape(-1, width)
        for portion, raw in self._steps(info, stored.itemsize, region):
            np.copyto(rows[portion], raw.view(stored), casting="unsafe")
        return out

    def equal(self, name: str, other: str) -> bool:
        """Whether two tensors have the same type, shape and bytes."""
        one, two = self.tensors[name], self.tensors[other]
        if (one.type, one.shape) != (two.type, two.shape):
            return False
        size = np.dtype(DTYPES[one.type]).itemsize
        region = Region.of(one.shape, ALL, 1, size)
        steps = zip(self._steps(one, size, region), self._steps(two, size, region), strict=True)
        return all(np.array_equal(a, b) for (_, a), (_, b) in steps)

    def _steps(self, info: TensorInfo, size: int, region: Region) -> Iterator[tuple[slice, np.ndarray]]:
        """See `FileRange.steps`; `size` is that of a value."""
        row = (info.shape[-1] if info.shape else 1) * size
        return self._ranges[info.name].steps(row, max(1, _BYTES_PER_STEP // max(1, row)), region)

    def read_blocks(self, name: str, only: Only = ALL) -> np.ndarray:
        """The tensor's bytes as they lie in the file, [..., N, bytes of a row] uint8; a fresh array."""
        info = self.tensors[name]
        rows = math.prod(info.shape[:-1])
        row = info.num_bytes // rows if rows else 0
        region = Region.of(info.shape, only, 1, row // info.shape[-1] if row else 0)
        out = aligned_empty((*region.shape[:-1], region.width(row)), np.uint8)
        self._ranges[name].read_into(out, row, region)
        return out

    def _open(self, path: Path) -> None:
        try:
            with safe_open(path, framework="numpy"):  # checks the header, and that it and the data fit the file
                pass
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: truncated or not a safetensors file: {error}") from error
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(size))
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in self.tensors:
                raise FormatError(f"{path}: tensor {name} is in another shard as well")
            start, end = entry["data_offsets"]
            self.tensors[name] = TensorInfo(name, tuple(entry["shape"]), entry["dtype"], end - start)
            self._ranges[name] = FileRange(path, 8 + size + start, end - start)


class SafetensorsDirectory(SafetensorsFiles):
    """A directory with config.json and model.safetensors, or the shards named in model.safetensors.index.json.

    As in transformers, model.safetensors counts where there is an index that does not name it: it is of another model.

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
        weight_map = self._weight_map()
        names = [_WHOLE] if weight_map is None else sorted(set(weight_map.values()))
        if absent := [name for name in names if not (self.path / name).is_file()]:
            raise FormatError(f"{self.path}: incomplete: missing {', '.join(absent)}")
        super().__init__(self.path / name for name in names)
        if weight_map is not None:
            self._check_index(weight_map)
        self._compare_head()

    def _compare_head(self) -> None:
        """Look whether the output head repeats the embedding table: files of models that have one for both may do so.

        Where it does not, the first bytes tell.
        """
        if (head := self.tensors.get(_HEAD)) is None or head.type not in DTYPES:
            return
        for name in filter(_EMBEDDING.fullmatch, self.tensors):
            if self.equal(_HEAD, name):
                self.tensors[_HEAD] = replace(head, repeats=name)

    def _check_index(self, weight_map: Mapping[str, str]) -> None:
        found = {name: entry.path.name for name, entry in self._ranges.items()}
        if wrong := sorted(
            name for name in found.keys() | weight_map.keys() if found.get(name) != weight_map.get(name)
        ):
            first = wrong[0]
            raise FormatError(
                f"{self.path}: index and shards disagree about {len(wrong)} tensors; {first} is in"
                f" {found.get(first, 'no shard')}, by the index in {weight_map.get(first, 'none')}: they are not of one"
                " model, or a download was mixed; download all of them again"
            )

    def _weight_map(self) -> dict[str, str] | None:
        index = self.path / "model.safetensors.index.json"
        if not index.is_file():
            return None
        weight_map = read_object(index, FormatError).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
            raise FormatError(f"{index}: no weight_map that names the file of each tensor; download the file again")
        return weight_map if _WHOLE in weight_map.values() or not (self.path / _WHOLE).is_file() else None
