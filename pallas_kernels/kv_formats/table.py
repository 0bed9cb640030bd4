"""All formats of KV caches, by name."""

from pallas_kernels.kv_formats.blocks import Q4_0, Q8_0
from pallas_kernels.kv_formats.format import BF16, F16, F32, KVFormat
from pallas_kernels.kv_formats.turbo import TURBO2, TURBO3, TURBO4

FORMATS: dict[str, KVFormat] = {format.name: format for format in (F32, F16, BF16, Q8_0, Q4_0, TURBO2, TURBO3, TURBO4)}
"""Every format by its name, in the order in which messages list them."""


def format_named(name: str) -> KVFormat:
    """The format of a name.

    Raises:
        ValueError: there is none.
    """
    if name not in FORMATS:
        raise ValueError(f"KV type {name!r} is not known; known are {', '.join(FORMATS)}")
    return FORMATS[name]
