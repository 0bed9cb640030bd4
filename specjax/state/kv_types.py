"""In which formats a sequence's keys and values are kept, as a setting."""

from __future__ import annotations

from dataclasses import dataclass

from pallas_kernels.kv_formats import FORMATS, format_named

KV_TYPES = tuple(FORMATS)
"""The names of all formats of KV caches."""


@dataclass(frozen=True)
class KVTypes:
    """The types of all caches of a model and of its drafter.

    Attributes:
        k, v: names of formats, see `pallas_kernels.kv_formats`.

    Raises:
        ValueError: a name is not known; the message tells those that are.
    """

    k: str = "f32"
    v: str = "f32"

    def __post_init__(self) -> None:
        for name in (self.k, self.v):
            format_named(name)

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"{self.k}/{self.v}"
