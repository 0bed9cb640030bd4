"""Writing the destination of a conversion, tensor by tensor."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from checkpoints.atomic import replaced_folder, write_text
from checkpoints.convert.plan import PlannedTensor, tensor_bytes
from checkpoints.convert.source_model import SourceModel
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.gguf.stream import TensorEntry, paths_written, write_stream
from checkpoints.gguf.values import GGUFValue
from checkpoints.mapping.table import Progress
from checkpoints.orbax.folder import GGUF_METADATA, HF_FOLDER, HF_KEPT, MANIFEST, PACKED
from checkpoints.safetensors.file import DTYPES
from checkpoints.safetensors.stream import INDEX, write_file, write_shards
from checkpoints.source import TensorInfo
from checkpoints.tokenizers import hf as tokenizer_hf
from checkpoints.tokenizers.tokenizer import TextTokenizer

SHARD_BYTES = 5 * 10**9
"""Files of Hugging Face models are not larger, by habit."""
_BESIDE = {".json", ".jinja", ".txt", ".model", ".md"}


def write_gguf_file(
    path: Path,
    values: Mapping[str, GGUFValue],
    tensors: Sequence[PlannedTensor],
    part_bytes: int | None,
    progress: Progress | None,
    *,
    force: bool,
) -> list[Path]:
    """Write a GGUF, whole or in parts; see `write_stream`."""
    entries, made = _entries(tensors), _made(tensors)
    return write_stream(path, values, entries, made, part_bytes=part_bytes, force=force, progress=progress)


def gguf_paths(
    path: Path, values: Mapping[str, GGUFValue], tensors: Sequence[PlannedTensor], part_bytes: int | None
) -> list[Path]:
    """The files that `write_gguf_file` makes."""
    return paths_written(path, values, _entries(tensors), part_bytes)


def write_hf_folder(
    path: Path,
    document: Mapping[str, Any],
    tensors: Sequence[PlannedTensor],
    beside: Path | None,
    tokenizer: TextTokenizer | None,
    shard_bytes: int | None,
    progress: Progress | None,
    *,
    force: bool,
) -> None:
    """Write a Hugging Face folder.

    Args:
        path: the folder.
        document: config.json.
        tensors: all tensors.
        beside: a folder whose other files (tokenizer, licence, ...) are copied; else the tokenizer is written, if any.
        tokenizer: see above.
        shard_bytes: largest size of a file.
        progress: called with bytes written and bytes in all.
        force: whether a folder that is there already is replaced.
    """
    with replaced_folder(path, force=force) as new:
        new.mkdir()
        infos = [tensor.info for tensor in tensors]
        write_shards(new, infos, _made(tensors), shard_bytes=shard_bytes or SHARD_BYTES, progress=progress)
        if beside is not None:
            _copy_beside(beside, new)
        elif tokenizer is not None:
            tokenizer_hf.save(tokenizer, new)
        write_text(new / "config.json", json.dumps(document, indent=2, ensure_ascii=False))


def write_orbax_folder(
    path: Path,
    model: SourceModel,
    table: Sequence[PlannedTensor],
    parameters: Sequence[PlannedTensor],
    kept: Sequence[PlannedTensor],
    progress: Progress | None,
    *,
    force: bool,
) -> None:
    """Write an Orbax folder; see `checkpoints.orbax.folder`.

    Args:
        path: the folder.
        model: the source.
        table: the tensors that its origin's format would have.
        parameters: the tree's arrays.
        kept: tensors of the origin that are not made of them.
        progress: called with bytes written and bytes in all.
        force: whether a folder that is there already is replaced.
    """
    from checkpoints.orbax.writer import write_tree

    with replaced_folder(path, force=force) as new:
        try:
            write_tree(new, dict(map(_leaf, parameters)), progress)
        except ValueError as error:  # of TensorStore, which knows no other
            if "space" in str(error) or "too large" in str(error):
                raise OSError(errno.ENOSPC, "No space left on device", str(path)) from error
            raise
        infos = [tensor.info for tensor in kept]
        if model.values is not None:
            write_gguf_file(new / GGUF_METADATA, model.values, kept, None, None, force=False)
        else:
            assert model.folder is not None
            (new / HF_FOLDER).mkdir()
            _copy_beside(model.folder, new / HF_FOLDER)
            write_text(new / HF_FOLDER / "config.json", json.dumps(model.document, indent=2, ensure_ascii=False))
            if kept:
                write_file(new / HF_KEPT, infos, _made(kept))
        manifest = {
            "origin": model.origin,
            "parameters": [_row(tensor.info) for tensor in parameters],
            "tensors": [_row(tensor.info) for tensor in table],
        }
        write_text(new / MANIFEST, json.dumps(manifest))


def _entries(tensors: Sequence[PlannedTensor]) -> list[TensorEntry]:
    return [TensorEntry(t.name, t.info.shape, GGML_TYPES[t.info.type]) for t in tensors]


def _made(tensors: Sequence[PlannedTensor]) -> Iterator[np.ndarray]:
    for tensor in tensors:
        yield np.ascontiguousarray(tensor.make())


def _leaf(tensor: PlannedTensor) -> tuple[str, Any]:
    from checkpoints.orbax.writer import LazyArray

    kind, shape = tensor.info.type, tensor.info.shape
    if kind in DTYPES:
        return tensor.name, LazyArray(shape, np.dtype(DTYPES[kind]), tensor.make)
    packed = (*shape[:-1], tensor_bytes(kind, shape[-1:]))
    return tensor.name + PACKED, LazyArray(packed, np.dtype(np.uint8), tensor.make)


def _copy_beside(source: Path, target: Path) -> None:
    """The files of a Hugging Face folder that hold no weights, config.json apart."""
    for file in sorted(source.iterdir()):
        wanted = file.suffix in _BESIDE or file.name.upper().startswith(("LICENSE", "NOTICE"))
        if file.is_file() and wanted and file.name not in ("config.json", INDEX):
            shutil.copyfile(file, target / file.name)


def _row(info: TensorInfo) -> list[Any]:
    return [info.name, info.type, list(info.shape), info.num_bytes]
