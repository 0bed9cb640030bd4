"""Opening a checkpoint: a GGUF file, a Hugging Face or Orbax folder in, config, parameters and tokenizer out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import jax
import numpy as np
from numpy.typing import DTypeLike

from checkpoints import heap
from checkpoints.errors import CheckpointError, TensorMismatchError, TokenizerError
from checkpoints.family import Config, Families, Family, FileKind, Role
from checkpoints.gguf.file import GGUFFile
from checkpoints.locate import locate
from checkpoints.mapping.digest import WeightDigest
from checkpoints.mapping.rule import copies
from checkpoints.mapping.table import (
    Outline,
    Progress,
    Put,
    RuleTable,
    outlined_on_default_device,
    put_on_default_device,
)
from checkpoints.orbax.folder import HF_FOLDER, MANIFEST, OrbaxFolder
from checkpoints.safetensors.file import SafetensorsDirectory
from checkpoints.source import TensorInfo, TensorSource
from checkpoints.tokenizers import gguf as tokenizer_gguf
from checkpoints.tokenizers import hf as tokenizer_hf
from checkpoints.tokenizers.tokenizer import TextTokenizer
from pallas_kernels.matmul import Activations

Format = Literal["gguf", "safetensors", "orbax"]
_DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Checkpoint:
    """A model in memory.

    Attributes:
        config: its hyper-parameters.
        params: its parameters: {"target": ..., "mtp": ...}, the latter only when the file has the head.
        tokenizer: its tokenizer; None only if `load` was told that it may be absent.
        path, format: where it came from.
        metadata: everything else that the file says about the model: the keys of the GGUF, or config.json.
        digest: tells its weights from others, see `checkpoints.mapping.digest`.
    """

    config: Config
    params: Mapping[str, Any] = field(repr=False)
    tokenizer: TextTokenizer | None
    path: Path
    format: Format
    metadata: Mapping[str, Any] = field(repr=False)
    digest: str


@dataclass(frozen=True)
class Description:
    """What a checkpoint contains, without its weights.

    Attributes:
        config, path, format, metadata: as in `Checkpoint`.
        tensors: every tensor of the file.
        parameters: tensor name -> paths of the parameters that are made of it; not for ignored tensors.
        role: what the file is for.
        has_mtp: whether a multi-token-prediction head is in the file of a target.
        vocab_size: tokens of the tokenizer, None if it is absent or not usable.
        problems: why `load` would refuse the file; None if it would not.
    """

    config: Config
    path: Path
    format: Format
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: tuple[TensorInfo, ...] = field(repr=False)
    parameters: Mapping[str, tuple[str, ...]] = field(repr=False)
    role: Role
    has_mtp: bool
    vocab_size: int | None
    problems: str | None

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(tensor.num_bytes for tensor in self.tensors)


@dataclass(frozen=True)
class OpenedCheckpoint:
    """A checkpoint whose metadata are read and whose weights are not. Made by `open_checkpoint`.

    Attributes:
        family: the family of the model.
        config, path, format, metadata: as in `Checkpoint`.
        source: the open file.
        rules: what becomes of its tensors.
    """

    family: Family = field(repr=False)
    config: Config
    source: TensorSource = field(repr=False)
    rules: RuleTable = field(repr=False)
    path: Path
    format: Format
    metadata: Mapping[str, Any] = field(repr=False)

    @property
    def parameter_paths(self) -> tuple[str, ...]:
        """Paths of all parameters that `load` gives, such as target.layers_0.attn_norm.weight."""
        return tuple(self.rules.shapes)

    @property
    def origin(self) -> FileKind:
        """The kind of file that it is, or that was converted if it is an Orbax folder."""
        return self.source.origin if isinstance(self.source, OrbaxFolder) else cast("FileKind", self.format)

    def tokenizer(self, *, required: bool) -> TextTokenizer | None:
        """The tokenizer; an absent or unusable one is None, or `TokenizerError` if it is required."""
        try:
            if self.origin == "gguf":
                return tokenizer_gguf.from_metadata(self.metadata, str(self.path))
            return tokenizer_hf.from_directory(self.path / HF_FOLDER if self.format == "orbax" else self.path)
        except TokenizerError:
            if required:
                raise
            return None

    def outline(
        self,
        dtype: DTypeLike = np.float32,
        *,
        put: Outline = outlined_on_default_device,
        packed: Activations | None = None,
    ) -> Mapping[str, Any]:
        """The parameters that `load` would give, as shapes. No weights are read.

        Args:
            dtype, packed: see `checkpoints.load`.
            put: makes the shapes of a parameter.

        Raises:
            TensorMismatchError, CheckpointError: as `load`.
        """
        kind = _matrix_dtype(dtype)
        self.rules.check(self.source, str(self.path))
        return self.rules.outline(self.source, kind, put, packed)

    def load(
        self,
        dtype: DTypeLike = np.float32,
        *,
        need_tokenizer: bool = True,
        progress: Progress | None = None,
        put: Put = put_on_default_device,
        packed: Activations | None = None,
        exchange: Callable[[str], Sequence[str]] | None = None,
    ) -> Checkpoint:
        """Read the weights. Tensors are read and converted one at a time.

        Args:
            dtype, need_tokenizer, progress, packed: see `checkpoints.load`.
            put: makes the parameter of a path from its values; decides where it lies, and what is read of it.
            exchange: gives a text to all processes that read parts of the model, and returns those of all. So the
                digest is that of the whole on each of them.

        Raises:
            TensorMismatchError, TokenizerError, CheckpointError: see `checkpoints.load`.
        """
        kind = _matrix_dtype(dtype)
        tokenizer = self.tokenizer(required=need_tokenizer)
        digest = WeightDigest()
        params = self.rules.load(self.source, str(self.path), kind, progress, put, packed, digest)
        if exchange is not None:
            digest.learn(exchange(digest.known()))
        jax.block_until_ready(params)
        heap.release()
        return Checkpoint(self.config, params, tokenizer, self.path, self.format, self.metadata, str(digest))


def load(
    path: str | Path,
    families: Families,
    dtype: DTypeLike = np.float32,
    *,
    need_tokenizer: bool = True,
    progress: Progress | None = None,
    packed: Activations | None = None,
) -> Checkpoint:
    """Load a model. Tensors are read and converted one at a time, onto JAX's default device.

    Args:
        path: a GGUF file (any part of a split one), a directory with config.json and safetensors, or an Orbax
            checkpoint that `specjax convert` made. A name such as "Qwen/Qwen3.5-4B" that is no path is one of the
            Hugging Face hub, from which the model is downloaded; see `checkpoints.locate`.
        families: the known ones, such as `specjax.FAMILIES`.
        dtype: of the matrices: float32, bfloat16 or float16; norms, convolutions and other vectors are float32 always.
        need_tokenizer: whether an absent or unusable tokenizer is an error; otherwise `tokenizer` is None then.
        progress: called with bytes done and bytes in all.
        packed: keep matrices of the block formats of `pallas_kernels.matmul` as `QTensor`; products round the
            other factor to 16 bits ("a16") or 8 ("a8"). None: decode every matrix to `dtype`.

    Raises:
        FormatError: no such file, or not a (complete) checkpoint.
        UnknownArchitectureError: a family that is not known; the message names those that are.
        ConfigError: the metadata describe no model.
        TensorMismatchError: missing, surplus, misshapen or unreadable tensors; all are listed.
        TokenizerError: the tokenizer is absent or of an unknown kind.
        CheckpointError: another dtype is asked for.

    Warns:
        MissingMTPWarning: the MTP head is declared and absent; the trunk is loaded without it.
        DecodedWarning: some types cannot stay packed, and are decoded.
    """
    return open_checkpoint(path, families).load(dtype, need_tokenizer=need_tokenizer, progress=progress, packed=packed)


def describe(path: str | Path, families: Families) -> Description:
    """What a checkpoint contains. Reads no weights, and reports mismatched tensors instead of raising.

    Raises:
        FormatError, UnknownArchitectureError, ConfigError: as `load`.

    Warns:
        MissingMTPWarning: as `load`.
    """
    opened = open_checkpoint(path, families)
    tokenizer = opened.tokenizer(required=False)
    problems = None
    try:
        opened.rules.check(opened.source, str(path))
    except TensorMismatchError as error:
        problems = str(error)
    return Description(
        config=opened.config,
        path=opened.path,
        format=opened.format,
        metadata=opened.metadata,
        tensors=tuple(opened.source.tensors.values()),
        parameters={name: rule.paths for rule in opened.rules.rules for name in rule.sources},
        role=opened.family.role,
        has_mtp=opened.family.role == "target" and opened.config.mtp_layers > 0,
        vocab_size=None if tokenizer is None else tokenizer.vocab_size,
        problems=problems,
    )


def _matrix_dtype(asked: DTypeLike) -> np.dtype:
    try:
        dtype = np.dtype(asked)
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in _DTYPES:
        raise CheckpointError(f"dtype is {asked!r}; matrices can be loaded as {', '.join(_DTYPES)}")
    return dtype


def open_checkpoint(
    path: str | Path, families: Families, type_codes: Mapping[int, str] | None = None
) -> OpenedCheckpoint:
    """Read what a checkpoint says of itself, and none of its weights.

    Args:
        path, families: as in `load`.
        type_codes: of a GGUF, see `GGUFFile`.

    Raises:
        FormatError, UnknownArchitectureError, ConfigError: as `load`.

    Warns:
        MissingMTPWarning: as `load`.
    """
    path = locate(path)
    if (path / MANIFEST).is_file():
        folder = OrbaxFolder(path)
        model = families.read(folder.origin, folder.metadata, folder.origin_tensors, str(path))
        rules = own_names(model.rules)
        return OpenedCheckpoint(model.family, model.config, folder, rules, path, "orbax", folder.metadata)
    if path.is_dir():
        directory = SafetensorsDirectory(path)
        model = families.read("safetensors", directory.document, directory.tensors, str(path))
        return OpenedCheckpoint(
            model.family, model.config, directory, model.rules, path, "safetensors", directory.document
        )
    file = GGUFFile(path, type_codes)
    model = families.read("gguf", file.metadata, file.tensors, str(path))
    return OpenedCheckpoint(model.family, model.config, file, model.rules, path, "gguf", file.metadata)


def own_names(origin: RuleTable) -> RuleTable:
    """The rules of an Orbax folder: each parameter is a tensor by its own name there."""
    return RuleTable(copies({path: path for path in origin.shapes}), {}, origin.shapes, origin.integers)
