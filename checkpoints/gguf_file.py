"""Reading the GGUF container: metadata, the tensor table, and one tensor at a time from the memory-mapped file.

Format: ggml-org/ggml `docs/gguf.md`. The header is parsed here and not by `gguf.GGUFReader`, which makes several array
objects per vocabulary entry and does not check lengths against the file; block formats are decoded by `gguf.quants`.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from numpy.typing import DTypeLike

from checkpoints.errors import FormatError
from checkpoints.source import TensorInfo, aligned_empty

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_PLAIN_TYPES: Mapping[GGMLQuantizationType, DTypeLike] = {
    GGMLQuantizationType.F32: np.float32,
    GGMLQuantizationType.F16: np.float16,
    GGMLQuantizationType.BF16: ml_dtypes.bfloat16,
}
_INTEGER_TYPES: Mapping[GGMLQuantizationType, DTypeLike] = {
    GGMLQuantizationType.I32: np.int32,
    GGMLQuantizationType.I64: np.int64,
}
_ELEMENTS_PER_STEP = 1 << 18
"""Block formats are decoded this many elements at a time: decoding needs several times its output in scratch space."""


class _Cursor:
    """A position in the header that refuses to run past the end of the file."""

    def __init__(self, data: np.ndarray, path: Path) -> None:
        self.data, self.path, self.offset = data.data, path, 0

    def take(self, size: int, what: str) -> memoryview:
        end = self.offset + size
        if end > len(self.data):
            raise FormatError(
                f"{self.path}: truncated: {what} at byte {self.offset} needs {size} bytes, but the file ends at byte"
                f" {len(self.data)}. Download or convert the file again."
            )
        self.offset, start = end, self.offset
        return self.data[start:end]

    def scalars(self, code: str, count: int, what: str) -> tuple[Any, ...]:
        raw = self.take(count * struct.calcsize(f"<{code}"), what)
        return struct.unpack(f"<{count}{code}", raw)

    def scalar(self, code: str, what: str) -> Any:
        return self.scalars(code, 1, what)[0]

    def string(self, what: str) -> str:
        raw = bytes(self.take(self.scalar("Q", f"the length of {what}"), what))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{self.path}: {what} is not UTF-8 ({error})") from None

    def value(self, kind: int, what: str) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind], what)
        if kind == _STRING:
            return self.string(what)
        if kind == _ARRAY:
            item_kind, count = self.scalar("I", what), self.scalar("Q", what)
            if item_kind in _SCALARS:
                return list(self.scalars(_SCALARS[item_kind], count, what))
            if item_kind == _STRING:
                return [self.string(what) for _ in range(count)]
            kind = item_kind
        raise FormatError(f"{self.path}: {what} has the unknown value type {kind}; the file is damaged or too new")


@dataclass(frozen=True)
class _Location:
    """Where a tensor's bytes lie: `data` is the whole memory-mapped file."""

    data: np.ndarray
    offset: int
    type: GGMLQuantizationType


class GGUFFile:
    """A GGUF file, or all parts of a split one (`NAME-00001-of-00003.gguf`).

    Attributes:
        path: the file that was named.
        metadata: every key with its value; arrays are lists.
        tensors: the tensor table, in file order.

    Raises:
        FormatError: no such file, not a GGUF, a version that is not known, a damaged header, a missing part, or
            tensor data that end after the file does.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._locations: dict[str, _Location] = {}
        parts = parts_of(self.path)
        for part in parts:
            self._open(part)
        if (declared := self.metadata.get("split.count", 1)) > len(parts):
            raise FormatError(
                f"{self.path}: one of {declared} parts of a split file, but its name does not say which; rename the"
                f" parts to NAME-00001-of-{declared:05d}.gguf and so on, or merge them with llama-gguf-split"
            )

    def can_read(self, name: str) -> bool:
        """Whether the tensor holds floating-point numbers, of a type that the `gguf` package can decode."""
        return _decodable(self._locations[name].type)

    def read(self, name: str, dtype: DTypeLike) -> np.ndarray:
        """The tensor, decoded to `dtype`, in row-major order."""
        info, location = self.tensors[name], self._locations[name]
        raw = location.data[location.offset : location.offset + info.num_bytes]
        out = aligned_empty(info.shape, dtype)
        if (plain := _PLAIN_TYPES.get(location.type) or _INTEGER_TYPES.get(location.type)) is not None:
            np.copyto(out, raw.view(plain).reshape(info.shape), casting="unsafe")
            return out
        width = info.shape[-1]
        rows, target = raw.reshape(-1, _row_bytes(width, location.type)), out.reshape(-1, width)
        step = max(1, _ELEMENTS_PER_STEP // max(1, width))
        for start in range(0, len(rows), step):
            target[start : start + step] = quants.dequantize(rows[start : start + step], location.type)
        return out

    def _open(self, path: Path) -> None:
        if not path.is_file():
            raise FormatError(f"{path}: no such file")
        with path.open("rb") as file:
            magic = file.read(4)
        if magic != _MAGIC:
            raise FormatError(f"{path}: not a GGUF file: it starts with {magic!r}, not with {_MAGIC!r}")
        data = np.memmap(path, np.uint8, "r").view(np.ndarray)
        cursor = _Cursor(data, path)
        cursor.take(len(_MAGIC), "the magic")
        version = cursor.scalar("I", "the version")
        if version not in _VERSIONS:
            hint = " (a big-endian file)" if version & 0xFFFF == 0 else ""
            raise FormatError(f"{path}: GGUF version {version}{hint}; versions {list(_VERSIONS)} can be read")
        num_tensors, num_keys = cursor.scalars("Q", 2, "the header")
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = cursor.string("a metadata key")
            metadata[key] = cursor.value(cursor.scalar("I", f"the type of {key}"), f"the value of {key}")
        table = [self._tensor_entry(cursor) for _ in range(num_tensors)]
        self.metadata = metadata | self.metadata
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise FormatError(f"{path}: general.alignment is {alignment!r}; it must be a power of two")
        self._place(path, data, table, -(-cursor.offset // alignment) * alignment)

    @staticmethod
    def _tensor_entry(cursor: _Cursor) -> tuple[TensorInfo, GGMLQuantizationType, int]:
        name = cursor.string("a tensor name")
        num_axes = cursor.scalar("I", f"the rank of {name}")
        shape = tuple(reversed(cursor.scalars("Q", num_axes, f"the shape of {name}")))
        code, offset = cursor.scalar("I", f"the type of {name}"), cursor.scalar("Q", f"the offset of {name}")
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            raise FormatError(
                f"{cursor.path}: tensor {name} has the type number {code}, which the installed gguf package does not"
                " know. A newer gguf package may: pip install --upgrade gguf"
            ) from None
        width, rows = (shape[-1] if shape else 1), math.prod(shape[:-1])
        block, _ = GGML_QUANT_SIZES[kind]
        if width % block:
            raise FormatError(
                f"{cursor.path}: tensor {name} {shape} has rows of {width}, but {kind.name} comes in blocks of {block}"
            )
        return TensorInfo(name, shape, kind.name, rows * _row_bytes(width, kind)), kind, offset

    def _place(
        self, path: Path, data: np.ndarray, table: list[tuple[TensorInfo, GGMLQuantizationType, int]], start: int
    ) -> None:
        beyond = [info.name for info, _, offset in table if start + offset + info.num_bytes > len(data)]
        if beyond:
            end = max(start + offset + info.num_bytes for info, _, offset in table)
            raise FormatError(
                f"{path}: truncated: the tensor data need {end} bytes, but the file has {len(data)}; {len(beyond)} of"
                f" {len(table)} tensors are incomplete, the first is {beyond[0]}. Download or convert the file again."
            )
        for info, kind, offset in table:
            if info.name in self.tensors:
                raise FormatError(f"{path}: tensor {info.name} occurs twice")
            self.tensors[info.name] = info
            self._locations[info.name] = _Location(data, start + offset, kind)


def parts_of(path: Path) -> list[Path]:
    """The file itself, or all parts of a split one, whichever of them is named."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    return [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def _row_bytes(width: int, kind: GGMLQuantizationType) -> int:
    block, size = GGML_QUANT_SIZES[kind]
    return width // block * size


@functools.cache
def _decodable(kind: GGMLQuantizationType) -> bool:
    if kind in _PLAIN_TYPES:
        return True
    try:
        quants.dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
    except NotImplementedError:
        return False
    return True
