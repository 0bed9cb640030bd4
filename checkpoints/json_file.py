"""Reading the JSON documents of a Hugging Face directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from checkpoints.errors import CheckpointError

_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def read_object(path: Path, error: type[CheckpointError]) -> dict[str, Any]:
    """The JSON object that the file holds; raises `error` when it holds anything else, or text that is not Unicode."""
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text)
        if _HALF.search(text):  # escapes of half a character, which no text can have; whole pairs are well
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not JSON: {problem}; copy or download the file again") from problem
    if not isinstance(document, dict):
        raise error(f"{path}: not a JSON object but {str(document)[:60]!r}; copy or download the file again")
    return document
