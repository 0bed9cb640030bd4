"""Modules that take long to import, and of which most processes need nothing."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class AtFirstUse:
    """Stands for a module, which is imported when something of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
