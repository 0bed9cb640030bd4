"""What can be wrong with a checkpoint. Every error is a `CheckpointError`, so that one `except` is enough."""

from __future__ import annotations

from collections.abc import Sequence


class CheckpointError(Exception):
    """A checkpoint cannot be read or written; the message says what was wrong, what was found, and what to do."""


class FormatError(CheckpointError):
    """The bytes are not what the format promises: not a GGUF, a truncated file, a broken header."""


class UnknownArchitectureError(CheckpointError):
    """The file holds a model family that this package does not know."""


class ConfigError(CheckpointError):
    """The metadata do not describe a model: keys are absent, contradictory, or ask for something unsupported."""


class TokenizerError(CheckpointError):
    """The tokenizer is absent, incomplete, or of an unknown kind."""


class DamagedTokenizerError(TokenizerError):
    """There is a tokenizer, but a file or a key of it is damaged."""


class TensorMismatchError(CheckpointError):
    """Tensors of the file and parameters of the model do not pair up one to one.

    Attributes:
        missing: tensors that the model needs and the file lacks.
        surplus: tensors of the file that no rule consumes.
        misshapen: lines "name: expected (..), got (..)".
        unsupported: lines "name: type", of types that cannot be read.
    """

    def __init__(
        self,
        where: str,
        missing: Sequence[str] = (),
        surplus: Sequence[str] = (),
        misshapen: Sequence[str] = (),
        unsupported: Sequence[str] = (),
    ) -> None:
        self.missing, self.surplus = tuple(missing), tuple(surplus)
        self.misshapen, self.unsupported = tuple(misshapen), tuple(unsupported)
        groups = (
            ("missing from the file", self.missing),
            ("in the file, but part of no model that its metadata describe", self.surplus),
            ("of the wrong shape", self.misshapen),
            ("of a type that cannot be read", self.unsupported),
        )
        lines = [f"{where}: the tensors do not match the model."]
        for title, names in groups:
            if names:
                lines.append(f"  {len(names)} {title}:")
                lines.extend(f"    {name}" for name in names)
        super().__init__("\n".join(lines))


class MissingMTPWarning(UserWarning):
    """The metadata declare a multi-token-prediction head, but the file does not contain it."""


class DecodedWarning(UserWarning):
    """Quantized matrices take more memory than in the file, because nothing computes with their type directly."""
