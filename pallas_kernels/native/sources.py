"""The sources of the native kernels, as one number: a library says which it was built from.

`setup.py` runs this file by itself, before the package can be imported.
"""

import hashlib
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"


def digest() -> str | None:
    """Of all sources, or None where there are none, as in an installed package."""
    files = sorted(path for path in SOURCES.rglob("*") if path.suffix in (".cc", ".h"))
    total = hashlib.sha256()
    for path in files:
        total.update(path.relative_to(SOURCES).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return total.hexdigest()[:16] if files else None
