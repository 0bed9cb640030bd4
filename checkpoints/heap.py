"""Returning freed memory to the system."""

from __future__ import annotations

import ctypes
import sys


def release() -> None:
    """Give the heap's free pages back, where the C library can: glibc keeps freed arrays of megabytes for later use."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
