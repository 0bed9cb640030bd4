"""Writing safetensors files tensor by tensor: one file, or shards with their index.

Format: huggingface/safetensors `README.md`; names of shards and index as transformers writes them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from checkpoints.atomic import replaced, write_text
from checkpoints.errors import CheckpointError
from checkpoints.mapping.table import Progress
from checkpoints.source import TensorInfo

INDEX = "model.safetensors.index.json"
_ALIGNMENT = 8


def write_file(path: Path, tensors: Sequence[TensorInfo], data: Iterable[np.ndarray]) -> None:
    """Write one file; it appears under its name only when it is complete. One tensor at a time is in memory.

    Args:
        path: the file to make or to replace.
        tensors: the tensor table.
        data: the tensors' values or bytes in the same order.

    Raises:
        CheckpointError: data of the wrong size, or the disk is full.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for entry in tensors:
        header[entry.name] = {
            "dtype": entry.type,
            "shape": list(entry.shape),
            "data_offsets": [end, end + entry.num_bytes],
        }
        end += entry.num_bytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with replaced(path) as temporary, temporary.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for entry, values in zip(tensors, data, strict=True):
            raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            if raw.nbytes != entry.num_bytes:
                raise CheckpointError(
                    f"{entry.name}: {entry.type} {entry.shape} takes {entry.num_bytes} bytes, but {raw.nbytes} were"
                    " given"
                )
            file.write(raw.data)


def write_shards(
    folder: Path,
    tensors: Sequence[TensorInfo],
    data: Iterable[np.ndarray],
    *,
    shard_bytes: int,
    progress: Progress | None = None,
) -> list[str]:
    """Write model.safetensors, or model-00001-of-0000N.safetensors and an index, into a folder.

    Args:
        folder: made if it is not there.
        tensors, data: as for `write_file`.
        shard_bytes: a file is closed before its tensors grow beyond this; one tensor at least goes into each.
        progress: called with bytes written and bytes in all.

    Returns:
        Names of the files with tensors.

    Raises:
        CheckpointError: see `write_file`.
    """
    shards: list[list[TensorInfo]] = [[]]
    for entry in tensors:
        if shards[-1] and sum(other.num_bytes for other in shards[-1]) + entry.num_bytes > shard_bytes:
            shards.append([])
        shards[-1].append(entry)
    total, files = sum(entry.num_bytes for entry in tensors), []
    weight_map: dict[str, str] = {}
    counted = _counted(tensors, iter(data), total, progress)
    for i, entries in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_file(folder / name, entries, (next(counted) for _ in entries))
        weight_map |= {entry.name: name for entry in entries}
        files.append(name)
    if len(shards) > 1:
        document: Mapping[str, object] = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_text(folder / INDEX, json.dumps(document, indent=2))
    return files


def _counted(
    tensors: Sequence[TensorInfo], data: Iterator[np.ndarray], total: int, progress: Progress | None
) -> Iterator[np.ndarray]:
    done = 0
    for entry in tensors:
        yield next(data)
        done += entry.num_bytes
        if progress is not None:
            progress(done, total)
