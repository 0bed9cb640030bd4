"""Writing the GGUF container tensor by tensor: one file, or the parts of a split one.

Nothing is interpreted here: metadata and tensors come with the types that they shall have in the file. Format:
ggml-org/ggml `docs/gguf.md`; keys of split files as llama.cpp's `tools/gguf-split` writes them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf import GGUFValueType

from checkpoints.atomic import check_room, replaced_together
from checkpoints.errors import CheckpointError
from checkpoints.gguf.file import ALIGNMENT_KEY, DEFAULT_ALIGNMENT
from checkpoints.gguf.ggml_types import GGMLType
from checkpoints.gguf.values import GGUFValue, encode
from checkpoints.mapping.table import Progress

_HEADER = b"GGUF" + struct.pack("<I", 3)
_SPLIT = "split."
_MAX_PARTS = 65535


@dataclass(frozen=True)
class TensorEntry:
    """A tensor that is to be written.

    Attributes:
        name: its name.
        shape: row-major, slowest axis first.
        type: its type.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLType

    @property
    def num_bytes(self) -> int:
        """Bytes of its data, without padding."""
        return self.type.tensor_bytes(self.shape)


@dataclass(frozen=True)
class _Part:
    metadata: bytes
    num_keys: int
    tensors: tuple[TensorEntry, ...]


def write_stream(
    path: str | Path,
    metadata: Mapping[str, GGUFValue],
    tensors: Sequence[TensorEntry],
    data: Iterable[np.ndarray | bytes],
    *,
    part_bytes: int | None = None,
    force: bool = True,
    progress: Progress | None = None,
) -> list[Path]:
    """Write a file; it appears under its name only when it is complete. One tensor at a time is in memory.

    Args:
        path: the file to make or to replace.
        metadata: all keys in their order, `general.architecture` too. Those of a split file (`split.*`) are left out.
        tensors: the tensor table, in the order of the file.
        data: the tensors' bytes in the same order, as they shall lie in the file, in arrays of any type.
        part_bytes: split into NAME-00001-of-0000N.gguf before a part grows beyond this; one tensor at least goes into
            each. A model that fits is one file under its own name.
        force: whether files that are there already are replaced.
        progress: called with bytes of tensors written and bytes in all.

    Returns:
        The files.

    Raises:
        CheckpointError: a value or a tensor does not fit its type, `data` are more or fewer than the tensors, there is
            no room on the disk, or too many parts are needed; or, without `force`, a file is there. Nothing is written
            then.
    """
    path = Path(path)
    for entry in tensors:
        if entry.shape and entry.shape[-1] % entry.type.values:
            raise CheckpointError(
                f"{entry.name} {entry.shape}: rows are no multiple of the {entry.type.values} values of a block of"
                f" {entry.type.name}"
            )
    alignment = _alignment(metadata)
    parts = _parts(metadata, tensors, part_bytes)
    paths = _paths(path, parts)
    total, done, source = sum(entry.num_bytes for entry in tensors), 0, iter(data)
    check_room(path, sum(_size(part, alignment) for part in parts))
    with replaced_together(paths, force=force) as temporaries:
        for part, temporary in zip(parts, temporaries, strict=True):
            with temporary.open("wb") as file:
                _write_head(file, part, alignment)
                for entry in part.tensors:
                    _write_tensor(file, entry, source, alignment)
                    done += entry.num_bytes
                    if progress is not None:
                        progress(done, total)
        if next(source, None) is not None:
            raise CheckpointError(f"{path}: data for more than the {len(tensors)} tensors of the table were given")
    return paths


def paths_written(
    path: Path, metadata: Mapping[str, GGUFValue], tensors: Sequence[TensorEntry], part_bytes: int | None
) -> list[Path]:
    """The files that `write_stream` makes: the path itself, or those of the parts."""
    return _paths(path, _parts(metadata, tensors, part_bytes))


def part_paths(path: Path, count: int) -> list[Path]:
    """Names of the parts of a split file, as llama.cpp expects them."""
    return [path.with_name(f"{path.stem}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


def _paths(path: Path, parts: Sequence[_Part]) -> list[Path]:
    return [path] if len(parts) == 1 else part_paths(path, len(parts))


def _alignment(metadata: Mapping[str, GGUFValue]) -> int:
    return metadata[ALIGNMENT_KEY].value if ALIGNMENT_KEY in metadata else DEFAULT_ALIGNMENT


def _parts(metadata: Mapping[str, GGUFValue], tensors: Sequence[TensorEntry], part_bytes: int | None) -> list[_Part]:
    keys = {key: value for key, value in metadata.items() if not key.startswith(_SPLIT)}
    alignment = _alignment(keys)
    encoded = b"".join(encode(key, value) for key, value in keys.items())
    whole = _Part(encoded, len(keys), tuple(tensors))
    if part_bytes is None or _size(whole, alignment) <= part_bytes:
        return [whole]
    later = {ALIGNMENT_KEY: keys[ALIGNMENT_KEY]} if ALIGNMENT_KEY in keys else {}
    groups: list[list[TensorEntry]] = [[]]
    used = _size(_Part(encoded + _split_keys(0, 0, 0), 0, ()), alignment)
    for entry in tensors:
        size = len(_table_entry(entry, 0)) + _padded(entry.num_bytes, alignment)
        if groups[-1] and used + size + alignment > part_bytes:
            groups.append([])
            used = _size(_Part(_split_keys(0, 0, 0), 0, ()), alignment)
        groups[-1].append(entry)
        used += size
    if len(groups) > _MAX_PARTS:
        raise CheckpointError(f"parts of {part_bytes} bytes make {len(groups)}; at most {_MAX_PARTS} are possible")
    parts = []
    for i, group in enumerate(groups):
        own = keys if i == 0 else later
        head = encoded if i == 0 else b"".join(encode(key, value) for key, value in later.items())
        parts.append(_Part(head + _split_keys(i, len(groups), len(tensors)), len(own) + 3, tuple(group)))
    return parts


def _split_keys(index: int, count: int, num_tensors: int) -> bytes:
    values = {
        "no": GGUFValue(index, GGUFValueType.UINT16),
        "count": GGUFValue(count, GGUFValueType.UINT16),
        "tensors.count": GGUFValue(num_tensors, GGUFValueType.INT32),
    }
    return b"".join(encode(_SPLIT + key, value) for key, value in values.items())


def _size(part: _Part, alignment: int) -> int:
    head = len(_HEADER) + 16 + len(part.metadata) + sum(len(_table_entry(entry, 0)) for entry in part.tensors)
    return _padded(head, alignment) + sum(_padded(entry.num_bytes, alignment) for entry in part.tensors)


def _write_head(file: BinaryIO, part: _Part, alignment: int) -> None:
    file.write(_HEADER + struct.pack("<QQ", len(part.tensors), part.num_keys) + part.metadata)
    offset = 0
    for entry in part.tensors:
        file.write(_table_entry(entry, offset))
        offset += _padded(entry.num_bytes, alignment)
    _pad(file, alignment)


def _table_entry(entry: TensorEntry, offset: int) -> bytes:
    name, axes = entry.name.encode(), tuple(reversed(entry.shape))
    return struct.pack(f"<Q{len(name)}sI{len(axes)}QIQ", len(name), name, len(axes), *axes, entry.type.code, offset)


def _write_tensor(file: BinaryIO, entry: TensorEntry, source: Iterator[np.ndarray | bytes], alignment: int) -> None:
    chunk = next(source, None)
    if chunk is None:
        raise CheckpointError(f"no data were given for {entry.name} and the tensors after it")
    raw = np.frombuffer(chunk, np.uint8) if isinstance(chunk, bytes) else np.ascontiguousarray(chunk).reshape(-1)
    if raw.nbytes != entry.num_bytes:
        raise CheckpointError(
            f"{entry.name}: {entry.type.name} {entry.shape} takes {entry.num_bytes} bytes, but {raw.nbytes} were given"
        )
    file.write(raw.view(np.uint8).data)
    _pad(file, alignment)


def _pad(file: BinaryIO, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
