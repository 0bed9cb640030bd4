"""What a model family is to files: how its configs and parameters are read and written, and what must hold of them.

This package knows no family. Whatever opens, converts, verifies, quantizes or writes a model takes the known ones as
`Families`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

import numpy as np

from checkpoints.config_numbers import check_numbers
from checkpoints.errors import ConfigError, UnknownArchitectureError
from checkpoints.findings import Report
from checkpoints.mapping.table import RuleTable
from checkpoints.source import TensorInfo
from pallas_kernels import using
from pallas_kernels.override import AUTO

Metadata = Mapping[str, Any]
"""Every key of a GGUF, or config.json."""
Tensors = Mapping[str, TensorInfo]
"""The tensor table of a file."""

FileKind = Literal["gguf", "safetensors"]
"""The two formats that describe models in their own terms; "safetensors" with a config.json of Hugging Face."""

Role = Literal["target", "assistant", "drafter"]
"""What a file of a family is for.

"target" decodes by itself; a head that drafts for it may lie in the same file (then `Config.mtp_layers` counts its
layers). "assistant" drafts for the targets of one family and reads their memory. "drafter" drafts for a target of any
family. Assistants and drafters have files of their own and are nothing without a target.
"""


class Config(Protocol):
    """What the files of every family need to know of a config, a dataclass; each family has a class of its own."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def architecture(self) -> str:
        """The value of `general.architecture` in a GGUF."""
        ...

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table."""
        ...

    @property
    def mtp_layers(self) -> int:
        """Layers that draft; 0: the file holds no head."""
        ...


@dataclass(frozen=True)
class FileFormat:
    """How a family appears in files of one kind.

    Attributes:
        names: values of `general.architecture`, or of `model_type` in config.json, that announce the family.
        read_config: (metadata, tensor table, name of the file for messages) -> config. The table tells which optional
            tensors there are. It raises `ConfigError` if keys are absent, of which it lists all, or ask for something
            that is not supported; ValueError and the like if numbers contradict each other. It warns by
            `MissingMTPWarning` if a head is declared that is not there, and leaves it out of the config.
        write_config: config -> metadata, without `general.architecture` and the like.
        rules: (config, tensor names of the file; empty when writing) -> the rule table.
        head_count: the key that counts the layers of a head in the same file, in a GGUF without the architecture.
        recognizes: says of metadata whether they announce the family although a name alone would not, or would announce
            another one.
    """

    names: tuple[str, ...]
    read_config: Callable[[Metadata, Tensors, str], Any]
    write_config: Callable[[Any], dict[str, Any]]
    rules: Callable[[Any, Collection[str]], RuleTable]
    head_count: str | None = None
    recognizes: Callable[[Metadata], bool] = lambda metadata: False


@dataclass(frozen=True)
class ValueCheck:
    """What must hold of the values of some parameters.

    Attributes:
        paths: a regular expression; the parameters whose whole path it matches.
        wrong: the values -> what is wrong with them, or None.
        fix: what to do then.
    """

    paths: str
    wrong: Callable[[np.ndarray], str | None]
    fix: str


@dataclass(frozen=True)
class Family:
    """One model family.

    Attributes:
        config_type: its config class, which follows `Config`.
        role: what its files are for.
        gguf, hf: how it appears in GGUF files and in Hugging Face folders.
        rope: config -> base and width of the rotary frequencies that a parameter divides. Such a config has
            `rope_factors`, whether it has the parameter, and `rope_formula`, how it is computed.
        rope_divisors: the path of this parameter.
        check_tables: (config, metadata, tensor table, report): looks for contradictions that need no values to be read,
            and adds them to the report.
        value_checks: what must hold of the values.
    """

    config_type: type
    role: Role
    gguf: FileFormat
    hf: FileFormat
    rope: Callable[[Any], tuple[float, int]] | None = None
    rope_divisors: str = "target.rope_factors"
    check_tables: Callable[[Any, Metadata, Tensors, Report], None] | None = None
    value_checks: tuple[ValueCheck, ...] = ()

    def format(self, kind: FileKind) -> FileFormat:
        """How the family appears in files of a kind."""
        return self.gguf if kind == "gguf" else self.hf

    def read(self, kind: FileKind, metadata: Metadata, tensors: Tensors, where: str) -> Model:
        """The model that a file of this family describes; arguments, errors and warnings as of `Families.read`."""
        form = self.format(kind)
        with _no_model(where, "the metadata describe" if kind == "gguf" else "config.json describes"):
            _check_layers(_declared_layers(kind, metadata), tensors)
            config = form.read_config(metadata, tensors, where)
            check_numbers(config, tensors, where)
            return Model(self, config, form.rules(config, tensors.keys()))


class Model(NamedTuple):
    """What a file says of the model in it: its family, its config, and what becomes of the tensors."""

    family: Family
    config: Config
    rules: RuleTable


F = TypeVar("F", bound=Family)


@dataclass(frozen=True)
class Families(Generic[F]):
    """The families that can be read and written."""

    members: tuple[F, ...]

    def of_gguf(self, architecture: str | None, where: str) -> F:
        """The family of a `general.architecture`; `UnknownArchitectureError` names the known ones."""
        return self._find("gguf", "architecture", architecture, where)

    def of_hf(self, model_type: str | None, where: str) -> F:
        """The family of a `model_type` of config.json; `UnknownArchitectureError` names the known ones."""
        return self._find("safetensors", "model_type", model_type, where)

    def of_config(self, config: Any) -> F:
        """The family that a config object belongs to.

        Raises:
            UnknownArchitectureError: to none of these.
        """
        for family in self.members:
            if type(config) is family.config_type:
                return family
        known = ", ".join(family.config_type.__name__ for family in self.members)
        raise UnknownArchitectureError(f"a {type(config).__name__} is the config of no known family; known are {known}")

    def read(self, kind: FileKind, metadata: Metadata, tensors: Tensors, where: str) -> Model:
        """The model that a file describes.

        Args:
            kind: of the file.
            metadata: all of it.
            tensors: its tensor table.
            where: its name, for messages.

        Raises:
            UnknownArchitectureError: none of those that are known.
            ConfigError: the metadata describe no model.

        Warns:
            MissingMTPWarning: a head is declared, and absent.
        """
        recognized = next((family for family in self.members if family.format(kind).recognizes(metadata)), None)
        if recognized is not None:
            family = recognized
        elif kind == "safetensors":
            family = self.of_hf(metadata.get("model_type"), where)
        else:
            if (content := metadata.get("general.type", "model")) != "model":
                raise UnknownArchitectureError(f"{where}: a GGUF of the type {content!r}, and no model")
            family = self.of_gguf(metadata.get("general.architecture"), where)
        return family.read(kind, metadata, tensors, where)

    def _find(self, kind: FileKind, what: str, name: str | None, where: str) -> F:
        for family in self.members:
            if name in family.format(kind).names:
                return family
        known = ", ".join(known for family in self.members for known in family.format(kind).names)
        raise UnknownArchitectureError(f"{where}: {what} {name!r} is not known; known are {known}")


@contextmanager
def _no_model(where: str, what: str) -> Iterator[None]:
    """Turn any error of reading a config into `ConfigError`: wrong numbers show at many places.

    Shapes are those of any kernels: a wrong choice of kernels, which is no fault of the file, is said by what computes.
    """
    try:
        with using(AUTO):
            yield
    except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        raise ConfigError(f"{where}: {what} no model: {error}; download or convert it again") from error


def _declared_layers(kind: FileKind, metadata: Metadata) -> Any:
    if kind == "gguf":
        return metadata.get(f"{metadata.get('general.architecture')}.block_count")
    text = metadata.get("text_config")
    return (text if isinstance(text, Mapping) else metadata).get("num_hidden_layers")


def _check_layers(count: Any, tensors: Tensors) -> None:
    """Raise ValueError for a number of layers that cannot be right: it would fill the memory."""
    if isinstance(count, (int, float)) and count > len(tensors):
        raise ValueError(f"{count} layers are declared, but there are only {len(tensors)} tensors")
