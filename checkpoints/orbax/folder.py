"""Reading a converted Orbax checkpoint: parameters by Orbax's own means, and beside them what else the model needs.

The folder is an Orbax checkpoint of the parameter tree {"target": ..., "mtp": ...}, in which a quantized matrix is the
array `parts.blocks` of a `QTensor`. It also holds
  specjax.json   where the model came from, the tensors that it had there, and the types of the parameters;
  source/        from a GGUF file: metadata.gguf, its metadata, and the tensors that no parameter holds;
                 from a Hugging Face folder: its files, with those tensors in kept.safetensors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import Sharding
from numpy.typing import DTypeLike

from checkpoints.errors import CheckpointError, FormatError
from checkpoints.family import FileKind
from checkpoints.gguf.file import GGUFFile
from checkpoints.gguf.ggml_types import GGML_TYPES, PLAIN_TYPES, decode_rows, is_decodable
from checkpoints.json_file import read_object
from checkpoints.mapping.tree import unflatten
from checkpoints.safetensors.file import SafetensorsFiles
from checkpoints.source import ALL, Only, TensorInfo, TensorSource, aligned_empty
from pallas_kernels.matmul import FORMATS, QTensor
from pallas_kernels.matmul.qtensor import BLOCKS

MANIFEST = "specjax.json"
GGUF_METADATA = "source/metadata.gguf"
HF_FOLDER = "source"
HF_KEPT = "source/kept.safetensors"
PACKED = ".parts.blocks"
"""What follows the path of a quantized matrix: as `jax.tree_util` names the part of a `QTensor`."""

_TREE = "_METADATA"
"""Where Orbax describes the tree."""

Placement = Sharding | Callable[[str, tuple[int, ...]], Sharding | None]
_ROWS_PER_STEP = 256
_CACHE_BYTES = 1 << 21


class OrbaxFolder:
    """A converted checkpoint.

    Attributes:
        path: the folder.
        origin: what the model was before.
        origin_tensors: the tensors that it had there.
        tensors: the parameters, as if each were a tensor of a file.
        kept: those tensors of the origin that are not made of parameters.
        metadata: the keys of the GGUF, or config.json.

    Raises:
        FormatError: files are absent or damaged.
        CheckpointError: no Orbax checkpoint can be at this path.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        check_path(self.path)
        document = read_object(self.path / MANIFEST, FormatError)
        try:
            self.origin: FileKind = {"gguf": "gguf", "safetensors": "safetensors"}[document["origin"]]  # type: ignore[assignment]
            known = GGML_TYPES.keys() if self.origin == "gguf" else ()
            self.origin_tensors = {row[0]: _tensor_info(row, known) for row in document["tensors"]}
            self.tensors = {row[0]: _tensor_info(row, GGML_TYPES.keys()) for row in document["parameters"]}
        except (LookupError, TypeError, ValueError) as error:
            raise FormatError(f"{self.path / MANIFEST}: damaged ({error!r}); convert the model again") from error
        if not (self.path / _TREE).is_file():
            raise FormatError(f"{self.path}: not an Orbax checkpoint: there is no {_TREE}")
        if "tree_metadata" not in read_object(self.path / _TREE, FormatError):
            raise FormatError(f"{self.path / _TREE}: damaged: it describes no tree; convert the model again")
        self.kept: TensorSource
        if self.origin == "gguf":
            self.kept = file = GGUFFile(self.path / GGUF_METADATA)
            self.metadata: Mapping[str, Any] = file.metadata
        else:
            kept = self.path / HF_KEPT
            self.kept = SafetensorsFiles([kept] if kept.is_file() else [])
            self.metadata = read_object(self.path / HF_FOLDER / "config.json", FormatError)

    def can_read(self, name: str) -> bool:
        """Whether the parameter holds floating-point numbers, of a type that can be decoded."""
        return is_decodable(GGML_TYPES[self.tensors[name].type])

    def read(self, name: str, dtype: DTypeLike, only: Only = ALL) -> np.ndarray:
        """The parameter, decoded to `dtype`."""
        info = self.tensors[name]
        if info.type in PLAIN_TYPES:
            return self._array(name, info.shape, np.dtype(PLAIN_TYPES[info.type]), only).astype(dtype, copy=False)
        kind, packed = GGML_TYPES[info.type], self.read_blocks(name, only)
        out = aligned_empty((*packed.shape[:-1], packed.shape[-1] // kind.num_bytes * kind.values), dtype)
        rows, packed = out.reshape(-1, out.shape[-1]), packed.reshape(-1, packed.shape[-1])
        for start in range(0, len(rows), _ROWS_PER_STEP):
            portion = slice(start, start + _ROWS_PER_STEP)
            rows[portion] = decode_rows(packed[portion], kind)
        return out

    def read_blocks(self, name: str, only: Only = ALL) -> np.ndarray:
        """The parameter's bytes as they lie in a GGUF file, [..., N, bytes of a row] uint8."""
        info = self.tensors[name]
        if info.type in PLAIN_TYPES:
            raw = self._array(name, info.shape, np.dtype(PLAIN_TYPES[info.type]), only)
            return raw.reshape(*raw.shape[:-1], -1).view(np.uint8)
        kind, last = GGML_TYPES[info.type], len(info.shape) - 1
        if last in only:
            blocks = only[last][:: kind.values] // kind.values
            own = (blocks[:, None] * kind.num_bytes + np.arange(kind.num_bytes)).reshape(-1)
            only = {**only, last: own}
        shape = (*info.shape[:-1], kind.row_bytes(info.shape[-1]))
        return self._array(name + PACKED, shape, np.dtype(np.uint8), only)

    @cached_property
    def _context(self) -> Any:
        """Keeps what is read of the database's own tables, which are asked for every chunk."""
        import tensorstore

        return tensorstore.Context({"cache_pool": {"total_bytes_limit": _CACHE_BYTES}})

    def _array(self, name: str, shape: tuple[int, ...], dtype: np.dtype, only: Only) -> np.ndarray:
        import tensorstore  # comes with Orbax, whose files are OCDBT databases of zarr arrays

        base = {"driver": "file", "path": f"{self.path.absolute()}/"}  # not a URL, in which #, ? and % mean something
        spec = {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": base, "path": f"{name}/"}}
        try:
            store = tensorstore.open(spec, open=True, read=True, context=self._context).result()
            if store.shape != shape:
                raise FormatError(f"{self.path}: {name} is {store.shape}, but {MANIFEST} says {shape}")
            if store.dtype.numpy_dtype != dtype:
                raise FormatError(f"{self.path}: {name} is {store.dtype.name}, but {MANIFEST} says {dtype.name}")
            chunk = cast(tuple[int, ...], store.chunk_layout.read_chunk.shape)
            wanted = [only.get(axis, np.arange(size)) for axis, size in enumerate(shape)]
            array = aligned_empty(tuple(map(len, wanted)), dtype)
            # All at once would be in memory a second time, as chunks. Chunks of which nothing is wanted are not read.
            for index in product(*(np.unique(own // n) for own, n in zip(wanted, chunk, strict=True))):
                ends = [(i * n, (i + 1) * n) for i, n in zip(index, chunk, strict=True)]
                here = [slice(*np.searchsorted(own, end)) for own, end in zip(wanted, ends, strict=True)]
                part = tuple(_index(own[place]) for own, place in zip(wanted, here, strict=True))
                array[tuple(here)] = store.oindex[part].read().result()
        except (ValueError, OSError) as error:
            raise FormatError(f"{self.path}: {name} cannot be read: {error}") from error
        return array


def _index(numbers: np.ndarray) -> slice | np.ndarray:
    """Ascending numbers as an index, as a slice if none is left out."""
    first, last = int(numbers[0]), int(numbers[-1])
    return slice(first, last + 1) if last - first + 1 == len(numbers) else numbers


def restore(path: str | Path, sharding: Placement) -> dict[str, Any]:
    """The parameter tree by Orbax alone: every device reads the part of each array that it holds.

    Args:
        path: a folder that `specjax convert` made.
        sharding: of all arrays; or of each by its path, such as `target.layers_0.mlp.up_proj.weight`, and its shape.
            That of a quantized matrix is [..., N, bytes of a row]: only whole rows make sense on a device.

    Returns:
        Nested dicts of arrays of the stored types; quantized matrices are `QTensor`.

    Raises:
        FormatError: it is no such folder.
        CheckpointError: a matrix is of a type that cannot be computed with.
    """
    import orbax.checkpoint as ocp

    folder = OrbaxFolder(path)
    unknown = {info.type for info in folder.tensors.values()} - PLAIN_TYPES.keys() - FORMATS.keys()
    if unknown:
        raise CheckpointError(
            f"{path} has tensors of the types {', '.join(sorted(unknown))}, for which there are no products; load the"
            " model with checkpoints.load, which decodes them"
        )

    def leaf(info: TensorInfo) -> Any:
        array: Any
        packed = info.type in FORMATS
        row = (GGML_TYPES[info.type].row_bytes(info.shape[-1]),) if packed else info.shape[-1:]
        shape = (*info.shape[:-1], *row)
        where = sharding if isinstance(sharding, Sharding) else sharding(info.name, shape)
        dtype = np.uint8 if packed else PLAIN_TYPES[info.type]
        array = jax.ShapeDtypeStruct(shape, dtype, sharding=where)
        return QTensor({BLOCKS: array}, info.type, info.shape[-2], info.shape[-1]) if packed else array

    tree = unflatten({name: leaf(info) for name, info in folder.tensors.items()})
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(folder.path.absolute(), tree)


def check_path(path: Path) -> None:
    """
    Raises:
        CheckpointError: the absolute path has a backslash, which TensorStore takes for a slash: it would read and
            write the arrays in another folder.
    """
    if "\\" in str(path.absolute()):
        raise CheckpointError(
            f"{path.absolute()}: an Orbax checkpoint cannot be at a path with a backslash; choose another place"
        )


def _tensor_info(row: Any, known: Collection[str]) -> TensorInfo:
    """A row of the manifest; its type must be known, unless none is given."""
    name, kind, shape, num_bytes = row
    if not isinstance(name, str) or not isinstance(kind, str):
        raise TypeError(f"{row!r} is not [name, type, shape, bytes]")
    if known and kind not in known:
        raise ValueError(f"{name} is of the unknown type {kind}")
    info = TensorInfo(name, tuple(int(n) for n in shape), kind, int(num_bytes))
    if kind in GGML_TYPES and GGML_TYPES[kind].tensor_bytes(info.shape) != info.num_bytes:
        raise ValueError(f"{name}: {kind} {info.shape} does not take {num_bytes} bytes")
    return info
