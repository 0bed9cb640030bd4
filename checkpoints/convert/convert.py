"""Converting a checkpoint: everything is planned and checked before the first byte is written."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from checkpoints.atomic import check_room, is_empty_folder
from checkpoints.convert import targets
from checkpoints.convert.compare import Comparison, compare
from checkpoints.convert.destination import check_files, check_folder
from checkpoints.convert.plan import PlannedTensor
from checkpoints.convert.source_model import SourceModel, open_model
from checkpoints.convert.targets import Types
from checkpoints.convert.writers import gguf_paths, write_gguf_file, write_hf_folder, write_orbax_folder
from checkpoints.errors import CheckpointError
from checkpoints.family import Families
from checkpoints.load import open_checkpoint
from checkpoints.locate import locate
from checkpoints.mapping.table import Progress
from checkpoints.orbax.folder import MANIFEST, check_path
from checkpoints.tokenizers.tokenizer import TextTokenizer

Kind = Literal["gguf", "hf", "orbax"]
_TYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert.

    Attributes:
        to: the format; None: told by the destination's name, or by what is there already.
        dtype: of matrices of floating-point numbers; None: as they are. Packed matrices stay packed where the
            destination has packed types, else they become this, bfloat16 if it is None.
        split_bytes: largest size of a file of the destination, where formats have several; None: the format's habit.
        drop_mtp: convert the trunk alone.
        force: replace what is there.
        tokenizer: take the tokenizer of another checkpoint.
    """

    to: Kind | None = None
    dtype: str | None = None
    split_bytes: int | None = None
    drop_mtp: bool = False
    force: bool = False
    tokenizer: Path | None = None

    def __post_init__(self) -> None:
        """
        Raises:
            ValueError: an option is none of those that exist.
        """
        if self.to is not None and self.to not in get_args(Kind):
            raise ValueError(f"to is {self.to!r}; known are {', '.join(get_args(Kind))}")
        if self.dtype is not None and self.dtype not in _TYPES:
            raise ValueError(f"dtype is {self.dtype!r}; known are {', '.join(_TYPES)}")
        if self.split_bytes is not None and self.split_bytes < 1:
            raise ValueError(f"split_bytes is {self.split_bytes}; it must be positive")

    @property
    def types(self) -> Types:
        """The types that floating-point numbers get."""
        chosen = _TYPES[self.dtype] if self.dtype else None
        return Types(chosen, chosen or "BF16")


@dataclass(frozen=True)
class Conversion:
    """A conversion that is planned, and can be run.

    Attributes:
        source, destination: paths.
        kind: format of the destination.
        tensors: every tensor of the destination: of an Orbax folder the parameters.
        kept: tensors that an Orbax folder keeps beside the parameters, to give the source back bit by bit.
        left_out: tensors of the source without a place in the destination, with the reason.
        without_tokenizer: why the destination gets no tokenizer; None if it gets one.
        options: see `ConvertOptions`.
    """

    source: Path
    destination: Path
    kind: Kind
    tensors: tuple[PlannedTensor, ...] = field(repr=False)
    kept: tuple[PlannedTensor, ...] = field(repr=False)
    left_out: Mapping[str, str] = field(repr=False)
    without_tokenizer: str | None
    options: ConvertOptions
    _families: Families = field(repr=False)
    _model: SourceModel = field(repr=False)
    _beside: Any = field(repr=False)
    _tokenizer: TextTokenizer | None = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors that are written."""
        return sum(tensor.info.num_bytes for tensor in (*self.tensors, *self.kept))

    @property
    def decoded(self) -> tuple[PlannedTensor, ...]:
        """Tensors that are packed in the source, and are not in the destination."""
        return tuple(
            tensor
            for tensor in self.tensors
            if tensor.info.type in _TYPES.values() and any(s.type not in targets.DTYPES for s in tensor.sources)
        )

    def run(self, progress: Progress | None = None) -> list[Path]:
        """Write the destination; it is there when it is complete.

        Args:
            progress: called with bytes written and bytes in all.

        Returns:
            The files or the folder.

        Raises:
            CheckpointError: the destination exists, there is no room, or a value does not fit its type; nothing is
                left behind then.
        """
        self.check_destination()
        check_room(self.destination, self.num_bytes)
        force, split_bytes = self.options.force, self.options.split_bytes
        if self.kind == "gguf":
            return write_gguf_file(self.destination, self._beside, self.tensors, split_bytes, progress, force=force)
        if self.kind == "hf":
            write_hf_folder(
                self.destination,
                self._beside,
                self.tensors,
                self._model.folder if self._model.origin == "safetensors" else None,
                self._tokenizer,
                split_bytes,
                progress,
                force=force,
            )
        else:
            table = targets.origin_table(self._model, self.options.types)
            write_orbax_folder(self.destination, self._model, table, self.tensors, self.kept, progress, force=force)
        return [self.destination]

    def compare(self, written: list[Path], progress: Progress | None = None) -> Comparison:
        """Read the destination again and compare it with the source, parameter by parameter.

        Args:
            written: what `run` returned.
            progress: called with bytes read and bytes in all.
        """
        return compare(self._model, open_model(written[0], self._families, drop_mtp=False), progress)

    def check_destination(self) -> None:
        """
        Raises:
            CheckpointError: the destination exists and is not to be replaced, or is no model, or is the source; its
                format cannot be written at such a path, or there is no folder to write it in.
        """
        if self.kind == "gguf":
            files = gguf_paths(self.destination, self._beside, self.tensors, self.options.split_bytes)
            check_files(self.source, self.destination, files, force=self.options.force)
            return
        check_folder(self.destination)
        if self.kind == "orbax":
            check_path(self.destination)
        if not self.destination.exists() or is_empty_folder(self.destination):
            return
        if self.destination.samefile(self.source):
            raise CheckpointError(f"{self.destination} is the source itself; give another destination")
        if not self.options.force:
            raise CheckpointError(f"{self.destination}: exists; give --force to replace it")
        if self.destination.is_file():
            raise CheckpointError(
                f"{self.destination} is a file, and the result is a folder; --force does not replace a file by a"
                " folder: give another destination"
            )
        if not _kind_of_folder(self.destination):
            raise CheckpointError(
                f"{self.destination} is a folder that holds no model; --force replaces only models: give another"
                " destination"
            )


def prepare(
    source: str | Path, destination: str | Path, families: Families, options: ConvertOptions | None = None
) -> Conversion:
    """Plan a conversion. Reads no more than metadata and a few vectors, and writes nothing.

    Args:
        source: a GGUF file (any part of a split one), a Hugging Face folder, or an Orbax folder made here.
        destination: the file or folder to make.
        families: the known ones, such as `specjax.FAMILIES`.
        options: see `ConvertOptions`.

    Raises:
        CheckpointError: the source is damaged, incomplete or of an unknown kind; its head is missing; the destination
            cannot express the model, or its format cannot be told.
    """
    options = options or ConvertOptions()
    source, destination = locate(source), Path(destination).expanduser()
    kind = options.to or _kind_of(destination)
    model = open_model(source, families, drop_mtp=options.drop_mtp)
    types, tokenizer = options.types, model.tokenizer()
    if options.tokenizer is not None:
        tokenizer = open_checkpoint(options.tokenizer, families).tokenizer(required=True)
    without_tokenizer = model.tokenizer_problem() if tokenizer is None and kind == "hf" else None
    beside: Any = None
    kept: list[PlannedTensor] = []
    if kind == "gguf":
        beside = targets.gguf_values(model, types, tokenizer, options.tokenizer)
        tensors = list(targets.gguf_tensors(model, types))
    elif kind == "hf":
        beside, tensors = targets.hf_document(model, types), list(targets.hf_tensors(model, types))
    else:
        tensors, kept = targets.orbax_tensors(model, types)
    left_out = targets.left_out(model, [*tensors, *kept])
    conversion = Conversion(
        source,
        destination,
        kind,
        tuple(tensors),
        tuple(kept),
        left_out,
        without_tokenizer,
        options,
        families,
        model,
        beside,
        tokenizer,
    )
    conversion.check_destination()
    return conversion


def remove(written: list[Path]) -> None:
    """Remove what `Conversion.run` wrote: a comparison has found it wrong."""
    for path in written:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _kind_of(destination: Path) -> Kind:
    if destination.suffix == ".gguf":
        return "gguf"
    if destination.suffix == ".orbax":
        return "orbax"
    if kind := _kind_of_folder(destination):
        return kind
    raise CheckpointError(
        f"{destination}: of which format shall it be? The name does not tell it; give --to gguf, --to hf or --to orbax,"
        " or a name that ends in .gguf or .orbax"
    )


def _kind_of_folder(folder: Path) -> Kind | None:
    if (folder / MANIFEST).is_file():
        return "orbax"
    return "hf" if (folder / "config.json").is_file() else None
