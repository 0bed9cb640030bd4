"""Returning freed memory to the system."""

from __future__ import annotations

import ctypes
import sys


def release() -> None:
    """Return free memory to the system, if the C library can do it. glibc keeps freed arrays of megabytes for later
    use.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
