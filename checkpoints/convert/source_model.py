"""The model that is converted: its parameters one at a time, in the types in which they are stored."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from checkpoints.convert.dropped_head import without_mtp_in_document, without_mtp_in_values
from checkpoints.errors import CheckpointError, MissingMTPWarning, TokenizerError
from checkpoints.family import Families, FileKind
from checkpoints.gguf.file import GGUFFile
from checkpoints.gguf.ggml_types import GGML_TYPES, PLAIN_TYPES, decode_rows
from checkpoints.gguf.values import GGUFValue
from checkpoints.load import OpenedCheckpoint, open_checkpoint, own_names
from checkpoints.mapping.rule import Rule
from checkpoints.mapping.table import RuleTable
from checkpoints.orbax.folder import HF_FOLDER, MANIFEST, OrbaxFolder
from checkpoints.safetensors.file import DTYPES
from checkpoints.source import ALL, Only, TensorInfo, TensorSource
from checkpoints.tokenizers.tokenizer import TextTokenizer

FLOATS = ("F32", "F16", "BF16")
_VALUES_PER_STEP = 1 << 18


@dataclass(frozen=True)
class Stored:
    """An array in a stored type.

    Attributes:
        type: such as "BF16" or "Q4_K".
        array: values of a plain type, packed rows [..., N, bytes of a row] uint8 of a block type.
    """

    type: str
    array: np.ndarray

    @property
    def packed(self) -> bool:
        """Whether the array holds packed rows."""
        return self.type not in DTYPES

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the values, also where rows are packed."""
        if not self.packed:
            return self.array.shape
        kind = GGML_TYPES[self.type]
        return (*self.array.shape[:-1], self.array.shape[-1] // kind.num_bytes * kind.values)

    def portions(self) -> Iterator[np.ndarray]:
        """The values in portions, one-dimensional; those of a block type as float32."""
        if not self.packed:
            for values in _together(self.array, 1):
                for start in range(0, values.size, _VALUES_PER_STEP):
                    yield values.reshape(-1)[start : start + _VALUES_PER_STEP]
            return
        kind, step = GGML_TYPES[self.type], max(1, _VALUES_PER_STEP // self.shape[-1])
        for part in _together(self.array, 2):
            rows = part.reshape(-1, part.shape[-1])
            for start in range(0, len(rows), step):
                yield decode_rows(rows[start : start + step], kind).reshape(-1)

    def values(self, kind: str, name: str) -> np.ndarray:
        """The values in a plain type.

        Args:
            kind: the type.
            name: of the tensor, for the message.

        Raises:
            CheckpointError: a value is too large for the type.
        """
        dtype = np.dtype(DTYPES[kind])
        if not self.packed and self.array.dtype == dtype:
            return self.array
        out, start = np.empty(self.shape, dtype), 0
        flat = out.reshape(-1)
        for portion in self.portions():
            target = flat[start : start + len(portion)]
            with np.errstate(over="ignore"):
                target[...] = portion.astype(dtype)
            if kind in FLOATS and not np.isfinite(target).all() and np.isfinite(portion).all():
                raise CheckpointError(f"{name}: values do not fit {kind}; choose another --dtype, such as bfloat16")
            start += len(portion)
        return out


@dataclass(frozen=True)
class Subset:
    """Some tensors of a source: see `TensorSource`."""

    source: TensorSource
    tensors: Mapping[str, TensorInfo]

    def can_read(self, name: str) -> bool:
        return self.source.can_read(name)

    def read(self, name: str, dtype: DTypeLike, only: Only = ALL) -> np.ndarray:
        return self.source.read(name, dtype, only)

    def read_blocks(self, name: str, only: Only = ALL) -> np.ndarray:
        return self.source.read_blocks(name, only)


@dataclass(frozen=True)
class _Remembered(Subset):
    """The tensor table of a file that may no longer exist."""

    readable: frozenset[str]

    def can_read(self, name: str) -> bool:
        """Whether they were of a type that can be converted."""
        return self.tensors[name].type in self.readable


class SourceModel:
    """An opened checkpoint of any format.

    Attributes:
        opened: the checkpoint.
        origin: the format of which it keeps the metadata and the tensor names; for an Orbax folder what it was before.
        origin_tensors: the tensors by the names of that format.
        kept: those of them that can be read as they are: all, or in an Orbax folder those that no parameter holds.
        values: the metadata of a GGUF with their types; None if the origin is another.
        document: config.json; None if the origin is another.
        folder: where the tokenizer's files lie if the origin is a Hugging Face folder.
    """

    def __init__(self, opened: OpenedCheckpoint) -> None:
        self.opened = opened
        source = opened.source
        self.origin: FileKind
        if isinstance(source, OrbaxFolder):
            self.origin, self.kept = source.origin, source.kept
            self.origin_tensors: Mapping[str, TensorInfo] = source.origin_tensors
            self.folder: Path | None = source.path / HF_FOLDER
        else:
            self.origin = "gguf" if isinstance(source, GGUFFile) else "safetensors"
            self.kept, self.origin_tensors, self.folder = source, source.tensors, opened.path
        self.values: dict[str, GGUFValue] | None = None
        self.document: dict[str, Any] | None = None
        if self.origin == "gguf":
            assert isinstance(self.kept, GGUFFile)
            self.values, self.folder = self.kept.values, None
        else:
            self.document = dict(opened.metadata)
        self._whole = opened
        self._use(opened)

    def tokenizer(self) -> TextTokenizer | None:
        """The tokenizer, None if it is absent or not usable."""
        return self._whole.tokenizer(required=False)

    def tokenizer_problem(self) -> str | None:
        """Why there is none that can be used; None if there is one."""
        try:
            self._whole.tokenizer(required=True)
        except TokenizerError as error:
            return str(error)
        return None

    def _use(self, opened: OpenedCheckpoint) -> None:
        self.opened = opened
        self._rule_of = {path: rule for rule in opened.rules.rules for path in rule.paths}
        self._cached: tuple[Rule | None, dict[str, Stored]] = (None, {})

    @property
    def origin_rules(self) -> RuleTable:
        """How the tensors of the origin make up the parameters."""
        opened = self.opened
        return opened.family.format(self.origin).rules(opened.config, self.origin_tensors.keys())

    def check_origin(self) -> None:
        """Check the tensors that an Orbax folder remembers of its origin: they must be made of its parameters again.

        Raises:
            TensorMismatchError: they are not those of the model.
        """
        readable = DTYPES if self.origin == "safetensors" else GGML_TYPES
        remembered = _Remembered(self.kept, self.origin_tensors, frozenset(readable))
        self.origin_rules.check(remembered, str(self.opened.path / MANIFEST))

    def type_of(self, path: str) -> str:
        """The type in which `parameter` gives a parameter."""
        return self._type(self._rule_of[path])

    def is_moved(self, path: str) -> bool:
        """Whether a parameter's values are those of the file, wherever they lie there."""
        return self._rule_of[path].moves_values

    def sources_of(self, paths: Collection[str]) -> list[TensorInfo]:
        """The tensors of the file that parameters are made of."""
        names = dict.fromkeys(name for path in paths for name in self._rule_of[path].sources)
        return [self.opened.source.tensors[name] for name in names]

    def parameter(self, path: str) -> Stored:
        """A parameter: as it is stored if its values are only moved on the way from the file, else in F32."""
        rule = self._rule_of[path]
        if self._cached[0] is not rule:
            self.forget_all_but(path)  # not two rules' parameters at once
            self._cached = (rule, self._read(rule))
        return self._cached[1][path]

    def forget_all_but(self, path: str) -> None:
        """Free what `parameter` has read, except what a parameter still needs."""
        if self._cached[0] is not self._rule_of[path]:
            self._cached = (None, {})

    def drop_mtp(self) -> None:
        """Leave the head out, and let the metadata say so.

        Raises:
            CheckpointError: there is nothing but the head.
        """
        whole = self.origin_rules.rules
        head = {name for rule in whole if _of_head(rule) for name in rule.sources}
        if not any(path.startswith("target.") for rule in whole for path in rule.paths):
            raise CheckpointError(f"{self.opened.path}: --drop-mtp: an assistant is nothing but a head")
        self.origin_tensors = {name: info for name, info in self.origin_tensors.items() if name not in head}
        self.kept = Subset(self.kept, {n: info for n, info in self.kept.tensors.items() if n not in head})
        where, metadata = str(self.opened.path), self._metadata_without_mtp()
        _, config, origin = self.opened.family.read(self.origin, metadata, self.origin_tensors, where)
        old = self.opened.source
        if self.opened.format == "orbax":
            tensors = {name: info for name, info in old.tensors.items() if not name.startswith("mtp.")}
            rules = own_names(origin)
        else:
            tensors, rules = dict(self.origin_tensors), origin
        source = Subset(old, tensors)
        self._use(replace(self.opened, config=config, metadata=metadata, source=source, rules=rules))

    def _metadata_without_mtp(self) -> Mapping[str, Any]:
        count = self.opened.family.format(self.origin).head_count
        if self.values is not None:
            self.values = without_mtp_in_values(self.values, count)
            return {key: value.value for key, value in self.values.items()}
        assert self.document is not None
        self.document = without_mtp_in_document(self.document, count)
        return self.document

    def _type(self, rule: Rule) -> str:
        types = {self.opened.source.tensors[name].type for name in rule.sources}
        if not self.opened.rules.integers.keys().isdisjoint(rule.paths):
            return "I32"
        if len(types) == 1 and rule.moves_values:
            (kind,) = types
            if kind in FLOATS or (kind not in DTYPES and rule.keeps_rows):
                return kind
        return "F32"

    def _read(self, rule: Rule) -> dict[str, Stored]:
        kind = self._type(rule)
        dtype = PLAIN_TYPES[kind] if kind in DTYPES else None
        read = self.opened.rules.parameters(rule, self.opened.source, dtype)
        return {path: Stored(kind, array) for path, array in read}


def open_model(
    path: Path, families: Families, *, drop_mtp: bool, type_codes: Mapping[int, str] | None = None
) -> SourceModel:
    """Open a checkpoint for conversion, and check that it is whole.

    Args:
        path: the checkpoint.
        families: the known ones.
        drop_mtp: leave the head out.
        type_codes: of a GGUF, see `GGUFFile`.

    Raises:
        CheckpointError: it is not; or it declares a head that it does not have, and that is not to be dropped.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened = open_checkpoint(path, families, type_codes)
    head_is_missing = None
    for warning in caught:
        if issubclass(warning.category, MissingMTPWarning):
            head_is_missing = str(warning.message)
        else:
            warnings.warn(warning.message, stacklevel=2)
    if head_is_missing and not drop_mtp:
        raise CheckpointError(
            f"{head_is_missing} It is not converted: get the complete model, or give --drop-mtp to convert the trunk"
            " alone"
        )
    opened.rules.check(opened.source, str(path))
    model = SourceModel(opened)
    if opened.format == "orbax":
        model.check_origin()
    if drop_mtp:
        if not head_is_missing and not opened.config.mtp_layers:
            raise CheckpointError(f"{path}: --drop-mtp: there is no MTP head to drop")
        model.drop_mtp()
    return model


def _together(array: np.ndarray, ndim: int) -> Iterator[np.ndarray]:
    """The parts of an array, of `ndim` axes at least, that need not be copied to make them contiguous."""
    if array.ndim <= ndim or array.flags.c_contiguous:
        yield array
    else:
        for part in array:
            yield from _together(part, ndim)


def _of_head(rule: Rule) -> bool:
    return bool(rule.paths) and all(path.startswith("mtp.") for path in rule.paths)
