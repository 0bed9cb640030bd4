"""Reading the GGUF container: metadata, the tensor table, and one tensor at a time.

Format: ggml-org/ggml `docs/gguf.md`. The header is parsed here and not by `gguf.GGUFReader`, which makes several array
objects per vocabulary entry and does not check lengths against the file; block formats are decoded by `gguf.quants`.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFValueType
from numpy.typing import DTypeLike

from checkpoints.errors import FormatError
from checkpoints.gguf.ggml_types import GGML_TYPES, OF_CACHES, PLAIN_TYPES, TYPE_OF_CODE, decode_rows, is_decodable
from checkpoints.gguf.values import SCALARS, GGUFValue, value_of
from checkpoints.region import Region
from checkpoints.source import ALL, FileRange, Only, TensorInfo, aligned_empty

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
ALIGNMENT_KEY = "general.alignment"
_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")

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

    def value(self, what: str) -> GGUFValue:
        kind = self.scalar("I", f"the type of {what}")
        if kind != GGUFValueType.ARRAY:
            return GGUFValue(self._items(kind, 1, what)[0], GGUFValueType(kind))
        item_kind, count = self.scalar("I", what), self.scalar("Q", what)
        return GGUFValue(self._items(item_kind, count, what), GGUFValueType.ARRAY, GGUFValueType(item_kind))

    def _items(self, kind: int, count: int, what: str) -> list[Any]:
        if kind in SCALARS:
            return list(self.scalars(SCALARS[kind], count, what))
        if kind == GGUFValueType.STRING:
            return [self.string(what) for _ in range(count)]
        raise FormatError(f"{self.path}: {what} has the unknown value type {kind}; the file is damaged or too new")


class GGUFFile:
    """A GGUF file, or all parts of a split one (`NAME-00001-of-00003.gguf`).

    Attributes:
        path: the file that was named.
        values: every key with its value and the type of that.
        metadata: every key with its value alone; arrays are lists.
        tensors: the tensor table, in file order.

    Raises:
        FormatError: no such file, not a GGUF, a version that is not known, a damaged header, a missing part, or
            tensor data that end after the file does.
    """

    def __init__(self, path: str | Path, type_codes: Mapping[int, str] | None = None) -> None:
        """
        Args:
            path: the file, or any part of a split one.
            type_codes: names of tensor types by their numbers, where a fork of llama.cpp has given them others.
        """
        self.path = Path(path)
        self._types = dict(TYPE_OF_CODE) | {code: GGML_TYPES[name] for code, name in (type_codes or {}).items()}
        self.values: dict[str, GGUFValue] = {}
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._ranges: dict[str, FileRange] = {}
        parts = parts_of(self.path)
        for index, part in enumerate(parts):
            own = {key: value.value for key, value in self._open(part).items()}
            number = value_of(own, "split.no", int, str(part), FormatError, default=index)
            if len(parts) > 1 and number != index:
                raise FormatError(f"{part}: says that it is part {number + 1}; give it its old name")
        if (declared := self._number("split.count", default=1)) > len(parts):
            raise FormatError(
                f"{self.path}: one of {declared} parts of a split file, but its name does not say which; rename the"
                f" parts to NAME-00001-of-{declared:05d}.gguf and so on, or merge them with llama-gguf-split"
            )
        if (expected := self._number("split.tensors.count", default=len(self.tensors))) != len(self.tensors):
            raise FormatError(
                f"{self.path}: the parts of this split file have {len(self.tensors)} tensors together, but {expected}"
                " are announced: they are not of one model; download or convert them again"
            )

    def _number(self, key: str, default: int) -> int:
        return value_of(self.metadata, key, int, str(self.path), FormatError, default)

    def can_read(self, name: str) -> bool:
        """Whether the tensor holds floating-point numbers, of a type that can be decoded."""
        return is_decodable(GGML_TYPES[self.tensors[name].type])

    def read(self, name: str, dtype: DTypeLike, only: Only = ALL) -> np.ndarray:
        """The tensor, decoded to `dtype`, in row-major order."""
        info = self.tensors[name]
        kind, width = GGML_TYPES[info.type], info.shape[-1] if info.shape else 1
        region = Region.of(info.shape, only, kind.values, kind.num_bytes)
        out, plain = aligned_empty(region.shape, dtype), PLAIN_TYPES.get(kind.name)
        rows = out.reshape(-1, region.shape[-1] if info.shape else 1)
        step = max(1, _ELEMENTS_PER_STEP // max(1, width))
        for portion, raw in self._ranges[name].steps(kind.row_bytes(width), step, region):
            if plain is None:
                rows[portion] = decode_rows(raw, kind)
            else:
                np.copyto(rows[portion], raw.view(plain), casting="unsafe")
        return out

    def read_blocks(self, name: str, only: Only = ALL) -> np.ndarray:
        """The tensor's bytes as they lie in the file, [..., N, bytes of a row] uint8; a fresh array."""
        info = self.tensors[name]
        kind, row = GGML_TYPES[info.type], GGML_TYPES[info.type].row_bytes(info.shape[-1] if info.shape else 1)
        region = Region.of(info.shape, only, kind.values, kind.num_bytes)
        out = aligned_empty((*region.shape[:-1], region.width(row)), np.uint8)
        self._ranges[name].read_into(out, row, region)
        return out

    def _open(self, path: Path) -> Mapping[str, GGUFValue]:
        if not path.exists():
            raise FormatError(f"{path}: no such file")
        if not path.is_file():
            raise FormatError(f"{path}: not a regular file; a GGUF is read in parts, so save it as a file first")
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
        values: dict[str, GGUFValue] = {}
        for _ in range(num_keys):
            key = cursor.string("a metadata key")
            if key in values:
                raise FormatError(f"{path}: the metadata key {key} occurs twice; convert the file again")
            values[key] = cursor.value(f"the value of {key}")
        table = [self._tensor_entry(cursor) for _ in range(num_tensors)]
        self.values |= {key: value for key, value in values.items() if key not in self.values}
        self.metadata = {key: value.value for key, value in self.values.items()}
        alignment = values[ALIGNMENT_KEY].value if ALIGNMENT_KEY in values else DEFAULT_ALIGNMENT
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise FormatError(f"{path}: general.alignment is {alignment!r}; it must be a power of two")
        self._place(path, data, table, -(-cursor.offset // alignment) * alignment)
        _check_offsets(path, table, alignment)
        return values

    def _tensor_entry(self, cursor: _Cursor) -> tuple[TensorInfo, int]:
        name = cursor.string("a tensor name")
        num_axes = cursor.scalar("I", f"the rank of {name}")
        shape = tuple(reversed(cursor.scalars("Q", num_axes, f"the shape of {name}")))
        code, offset = cursor.scalar("I", f"the type of {name}"), cursor.scalar("Q", f"the offset of {name}")
        if (kind := self._types.get(code)) is None:
            if code in OF_CACHES:
                raise FormatError(
                    f"{cursor.path}: tensor {name} has the type number {code}, which is {OF_CACHES[code]} in the forks"
                    " of llama.cpp with TurboQuant: a type of KV caches, which is not read as one of weights. Quantize"
                    " the original again, to TQ4_1S or another type that specjax quantize --help lists. If the file is"
                    " of another fork, which numbers a known type so: specjax quantize --gguf-type"
                    f" {code}=TQ4_1S"
                )
            raise FormatError(
                f"{cursor.path}: tensor {name} has the type number {code}, which the installed gguf package does not"
                " know. A newer gguf package may: pip install --upgrade gguf. If it is the number that a fork of"
                f" llama.cpp gives to a type known here, make a file with the usual one: specjax quantize --gguf-type"
                f" {code}=TQ4_1S"
            )
        width = shape[-1] if shape else 1
        if width % kind.values:
            raise FormatError(
                f"{cursor.path}: tensor {name} {shape} has rows of {width}, but {kind.name} comes in blocks of"
                f" {kind.values}"
            )
        return TensorInfo(name, shape, kind.name, kind.tensor_bytes(shape)), offset

    def _place(self, path: Path, data: np.ndarray, table: list[tuple[TensorInfo, int]], start: int) -> None:
        beyond = [info.name for info, offset in table if start + offset + info.num_bytes > len(data)]
        if beyond:
            end = max(start + offset + info.num_bytes for info, offset in table)
            raise FormatError(
                f"{path}: truncated: the tensor data need {end} bytes, but the file has {len(data)}; {len(beyond)} of"
                f" {len(table)} tensors are incomplete, the first is {beyond[0]}. Download or convert the file again."
            )
        for info, offset in table:
            if info.name in self.tensors:
                raise FormatError(f"{path}: tensor {info.name} occurs twice")
            self.tensors[info.name] = info
            self._ranges[info.name] = FileRange(path, start + offset, info.num_bytes)


def _check_offsets(path: Path, table: list[tuple[TensorInfo, int]], alignment: int) -> None:
    end, before = 0, ""
    for info, offset in sorted(table, key=lambda entry: entry[1]):
        if offset % alignment:
            raise FormatError(
                f"{path}: tensor {info.name} begins at byte {offset} of the data, which is no multiple of the alignment"
                f" {alignment}; the file is damaged: download or convert it again"
            )
        if offset < end:
            raise FormatError(
                f"{path}: tensor {info.name} begins within {before}; the file is damaged: download or convert it again"
            )
        end, before = offset + info.num_bytes, info.name


def parts_of(path: Path) -> list[Path]:
    """The file itself, or all parts of a split one, whichever of them is named."""
    match = _SPLIT_NAME.fullmatch(path.name)
    if match is None:
        return [path]
    count = int(match["count"])
    return [path.with_name(f"{match['stem']}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]
