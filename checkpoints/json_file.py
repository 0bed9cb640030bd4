"""Reading the JSON documents of a Hugging Face directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from checkpoints.errors import CheckpointError


def read_object(path: Path, error: type[CheckpointError]) -> dict[str, Any]:
    """The JSON object that the file holds; raises `error` when it holds anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as problem:
        raise error(f"{path}: not JSON: {problem}; copy or download the file again") from problem
    if not isinstance(document, dict):
        raise error(f"{path}: not a JSON object but {str(document)[:60]!r}; copy or download the file again")
    return document
