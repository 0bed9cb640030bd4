"""Importance matrices: how much the columns of a model's matrices count, as files that llama.cpp shares.

For every matrix the sum of the squares of what its columns were multiplied with, over some text, and how many rows
were summed; experts have each their own. Format: llama.cpp `tools/imatrix/README.md` (a GGUF); the older one without
metadata can be read.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from gguf import GGUFValueType
from jaxtyping import Float

from checkpoints.errors import CheckpointError, FormatError
from checkpoints.gguf.file import GGUFFile
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.gguf.stream import TensorEntry, write_stream
from checkpoints.gguf.values import GGUFValue, typed, value_of

_SUMS, _COUNTS = ".in_sum2", ".counts"


@dataclass(frozen=True)
class Entry:
    """What is known of a matrix, or of a stack of E experts.

    Attributes:
        sums: sums of squares.
        counts: how many rows were summed, of each expert.
    """

    sums: Float[np.ndarray, "E K"]
    counts: Float[np.ndarray, "E"]

    def means(self) -> Float[np.ndarray, "E K"]:
        """Mean squares; 1 for experts that no row was sent to."""
        seen = self.counts[:, None] > 0
        return np.where(seen, self.sums / np.where(seen, self.counts[:, None], 1), 1).astype(np.float32)


@dataclass(frozen=True)
class ImportanceMatrix:
    """An importance matrix.

    Attributes:
        entries: by the name of the tensor in a GGUF.
        datasets: names of the texts.
        chunk_count, chunk_size: how many pieces of how many tokens were read.
        path: the file it comes from; None if it is new.
    """

    entries: Mapping[str, Entry] = field(repr=False)
    datasets: tuple[str, ...]
    chunk_count: int
    chunk_size: int
    path: Path | None = None

    def of(self, name: str, shape: tuple[int, ...]) -> Float[np.ndarray, "... K"] | None:
        """The mean squares for a matrix [N, K], or one row for each of a stack [E, N, K]; None if nothing is known."""
        if (entry := self.entries.get(name)) is None:
            return None
        means = entry.means()
        return means[0] if len(shape) == 2 else np.broadcast_to(means, (shape[0], shape[-1]))

    def check(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """
        Raises:
            CheckpointError: nothing in it is about these tensors, or widths or numbers of experts differ.
        """
        where = self.path or "the importance matrix"
        if not self.entries.keys() & shapes.keys():
            raise CheckpointError(f"{where} has entries for none of the model's tensors: it belongs to another model")
        for name in self.entries.keys() & shapes.keys():
            experts, width = self.entries[name].sums.shape
            shape = shapes[name]
            if width != shape[-1] or experts not in (1, *shape[:-2]):
                raise CheckpointError(
                    f"{where}: {name} is {shape} in the model, but the sums are of {experts} x {width} columns: it"
                    " belongs to another model"
                )

    def provenance(self) -> dict[str, GGUFValue]:
        """The keys with which llama-quantize says in a file which importance matrix was used."""
        keys = {
            "quantize.imatrix.file": self.path.name if self.path else "",
            "quantize.imatrix.dataset": ", ".join(self.datasets),
        }
        counts = {
            "quantize.imatrix.entries_count": len(self.entries),
            "quantize.imatrix.chunks_count": self.chunk_count,
        }
        return {key: typed(key, value) for key, value in {**keys, **counts}.items()}


def write_imatrix(path: str | Path, matrix: ImportanceMatrix) -> None:
    """Write the GGUF form; the file appears under its name only when it is complete."""
    metadata = {
        "general.type": typed("general.type", "imatrix"),
        "imatrix.datasets": GGUFValue(list(matrix.datasets), GGUFValueType.ARRAY, GGUFValueType.STRING),
        "imatrix.chunk_count": typed("imatrix.chunk_count", matrix.chunk_count),
        "imatrix.chunk_size": typed("imatrix.chunk_size", matrix.chunk_size),
    }
    tensors, data = [], []
    for name, entry in sorted(matrix.entries.items()):
        arrays = ((_SUMS, entry.sums), (_COUNTS, entry.counts[:, None]))
        for suffix, array in arrays if len(entry.counts) > 1 else ((key, array[0]) for key, array in arrays):
            tensors.append(TensorEntry(name + suffix, array.shape, GGML_TYPES["F32"]))
            data.append(np.ascontiguousarray(array, np.float32))
    write_stream(path, metadata, tensors, data)


def read_imatrix(path: str | Path) -> ImportanceMatrix:
    """Read either form.

    Raises:
        FormatError: no such file, it is damaged, or it is something else.
    """
    path = Path(path)
    if not path.exists():
        raise FormatError(f"{path}: no such file")
    if not path.is_file():
        raise FormatError(f"{path}: not a regular file; save the matrix as one first")
    with path.open("rb") as file:
        is_gguf = file.read(4) == b"GGUF"
    return _read_gguf(path) if is_gguf else _read_old(path)


def _read_gguf(path: Path) -> ImportanceMatrix:
    file = GGUFFile(path)
    if (kind := file.metadata.get("general.type", "imatrix")) != "imatrix":
        raise FormatError(
            f"{path}: a GGUF of the type {kind!r}, and no importance matrix; make one with specjax imatrix"
        )
    names = {name.removesuffix(_SUMS) for name in file.tensors if name.endswith(_SUMS)}
    others = {name.removesuffix(_COUNTS) for name in file.tensors if name.endswith(_COUNTS)}
    if not names or names != others or len(file.tensors) != 2 * len(names):
        raise FormatError(f"{path}: not an importance matrix: tensors come in pairs NAME{_SUMS} and NAME{_COUNTS}")
    entries = {}
    for name in names:
        counts = file.read(name + _COUNTS, np.float32).reshape(-1)
        sums = file.read(name + _SUMS, np.float32)
        entries[name] = _entry(path, name, sums.reshape(-1), counts)
    value = partial(value_of, file.metadata, where=str(path), error=FormatError)
    return ImportanceMatrix(
        entries,
        tuple(value("imatrix.datasets", list[str], default=())),
        value("imatrix.chunk_count", int, default=0),
        value("imatrix.chunk_size", int, default=0),
        path,
    )


def _read_old(path: Path) -> ImportanceMatrix:
    """Entries of int32 and float32: the sums are means here, times a number of calls."""
    data, offset, entries = path.read_bytes(), 0, {}

    def integer() -> int:
        nonlocal offset
        (value,) = struct.unpack_from("<i", data, offset)
        offset += 4
        return value

    def text() -> str:
        nonlocal offset
        length = integer()
        raw, offset = data[offset : offset + length], offset + length
        return raw.decode()

    try:
        for _ in range(integer()):
            name, calls, count = text(), integer(), integer()
            sums = np.frombuffer(data, "<f4", count, offset)
            offset += 4 * count
            entries[name] = _entry(path, name, sums, np.full(1, max(calls, 1), np.float32))
        chunks = integer() if offset < len(data) else 0
        datasets = (text(),) if offset < len(data) else ()
    except (struct.error, ValueError, OverflowError) as error:
        raise FormatError(f"{path}: neither a GGUF nor an importance matrix of the old kind: {error}") from error
    if not entries:
        raise FormatError(f"{path}: neither a GGUF nor an importance matrix of the old kind: there are no entries")
    return ImportanceMatrix(entries, datasets, chunks, 0, path)


def _entry(path: Path, name: str, sums: np.ndarray, counts: np.ndarray) -> Entry:
    if not len(counts) or len(sums) % len(counts):
        raise FormatError(f"{path}: {name}: {len(sums)} sums do not divide among {len(counts)} counts")
    if not (np.isfinite(sums).all() and np.isfinite(counts).all() and sums.min(initial=0) >= 0):
        raise FormatError(f"{path}: {name}: sums of squares must be finite and not negative; collect them again")
    return Entry(sums.reshape(len(counts), -1), counts)
