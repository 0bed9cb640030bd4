"""Small files of text that are whole at any time, and the folder of the user's cache."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import NamedTemporaryFile

CACHE_VARIABLE = "SPECJAX_CACHE"


def cache_folder() -> Path | None:
    """Where compiled programs and what was measured are kept; None when `SPECJAX_CACHE` is empty."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen is not None:
        return Path(chosen).expanduser() if chosen else None
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "specjax" / "xla"


def replace_text(path: Path, text: str) -> None:
    """Replace a file, or make it and its folder; at no time is there half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f"{path.name}.", delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(text)
        Path(file.name).chmod(0o644)
        Path(file.name).replace(path)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise
