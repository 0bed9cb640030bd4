"""Verifying a checkpoint of any format: first what it says, then what it holds."""

from __future__ import annotations

import warnings
from pathlib import Path

from checkpoints.convert.source_model import SourceModel
from checkpoints.errors import CheckpointError, MissingMTPWarning, TensorMismatchError
from checkpoints.family import Families
from checkpoints.findings import Report
from checkpoints.load import OpenedCheckpoint, open_checkpoint
from checkpoints.mapping.table import Progress
from checkpoints.orbax.folder import MANIFEST, OrbaxFolder
from checkpoints.verifier import structure, tokens, values

_AGAIN = "download or convert it again"


def verify(path: str | Path, families: Families, *, fast: bool = False, progress: Progress | None = None) -> Report:
    """Check a GGUF file, a Hugging Face or an Orbax folder. Nothing is raised for a bad one: all is in the report.

    Args:
        path: the file or folder.
        families: the known ones, such as `specjax.FAMILIES`.
        fast: leave the values of the tensors unread.
        progress: called with bytes read and bytes in all.
    """
    report = Report()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            opened = open_checkpoint(path, families)
        except CheckpointError as error:
            report.error(str(error), _AGAIN)
            return report
        except OSError as error:
            report.error(f"{error.filename or path}: {error.strerror or error}", f"make it readable; or {_AGAIN}")
            return report
    report.checked.append("the file is whole, and its metadata describe a model")
    for warning in caught:
        if issubclass(warning.category, MissingMTPWarning):
            report.error(
                str(warning.message),
                "get a complete file; or convert the trunk alone, with `specjax convert --drop-mtp`",
            )
    if opened.config.mtp_layers and not report.errors:
        report.checked.append(f"the MTP head is there, as declared ({opened.config.mtp_layers} layers)")
    whole = _tensors_pair_up(opened, report)
    if isinstance(opened.source, OrbaxFolder):
        _origin_can_be_made(opened, report)
    structure.check(opened, report)
    tokens.check(opened, report)
    if whole and not fast:
        values.check(opened, report, progress)
    return report


def _origin_can_be_made(opened: OpenedCheckpoint, report: Report) -> None:
    """An Orbax folder remembers the tensors of its origin; they must be those of the model."""
    model = SourceModel(opened)
    try:
        model.check_origin()
    except TensorMismatchError as error:
        for entry in (*error.missing, *error.surplus, *error.misshapen, *error.unsupported):
            report.error(
                f"{MANIFEST} remembers other tensors of the {model.origin} it was made of than the model has: {entry}",
                "the file was changed: convert the original again",
            )


def _tensors_pair_up(opened: OpenedCheckpoint, report: Report) -> bool:
    try:
        opened.rules.check(opened.source, str(opened.path))
    except TensorMismatchError as error:
        paths = {name: rule.paths for rule in opened.rules.rules for name in rule.sources}
        for entry in error.missing:
            head = any(path.startswith("mtp.") for path in paths.get(entry.split(" ")[0], ()))
            part = "the MTP head is incomplete: " if head else ""
            report.error(f"{part}tensor {entry} is missing", f"the file was cut or converted in part: {_AGAIN}")
        for entry in error.surplus:
            report.error(
                f"tensor {entry} belongs to nothing that the metadata describe",
                "the metadata lack a declaration (of a head, or of more layers), or the file is of an unknown variant:"
                f" {_AGAIN} with a present converter",
            )
        for entry in error.misshapen:
            report.error(f"tensor {entry}", f"metadata and tensors are of different models: {_AGAIN}")
        for entry in error.unsupported:
            report.error(
                f"tensor {entry} is not a type that can be read there",
                "quantize again from the original with a type that can, such as Q8_0; integers are I32 or I64",
            )
        return False
    report.checked.append(f"{len(opened.source.tensors)} tensors have the names and shapes of the model")
    return True
