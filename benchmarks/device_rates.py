"""How fast devices are, as their makers publish it: memory, arithmetic, links. Nothing here was measured.

NVIDIA's data sheets of the A100 (SXM), H100 (SXM) and H200 (SXM), and the Ada architecture paper for the RTX 4090.
Figures of tensor cores are those without sparsity, half of what the sheets of Hopper print. Google Cloud's pages on TPU
v4, v5e, v5p and v6e. An H100 sends half of the 900 GB/s that NVLink carries in both directions. A chip of a v5e slice
sends 200 GB/s over four links, of which a ring uses two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from specjax.analysis.memory import DEVICES


@dataclass(frozen=True)
class Rates:
    """What a device does in a second.

    Attributes:
        platform: "cpu", "gpu" or "tpu".
        memory: bytes that it reads or writes.
        bf16: multiplications and additions of 16-bit floats on units for matrices; None where it was not measured.
        int8: of bytes on such units; None where nothing is published.
        f32: of float32, outside of such units; None where nothing is published.
        link: bytes that it sends to others in a ring; None where nobody asked yet.
    """

    platform: str
    memory: float
    bf16: float | None
    int8: float | None = None
    f32: float | None = None
    link: float | None = None


def _published(
    name: str, memory: float, bf16: float, int8: float, f32: float | None = None, link: float | None = None
) -> Rates:
    """From GB/s and TFLOP/s."""
    platform = DEVICES[name].platform
    in_gb = None if link is None else link * 1e9
    return Rates(platform, memory * 1e9, bf16 * 1e12, int8 * 1e12, None if f32 is None else f32 * 1e12, in_gb)


PUBLISHED: Mapping[str, Rates] = {
    "h100": _published("h100", 3350, 989.5, 1979, f32=67, link=450),
    "h200": _published("h200", 4800, 989.5, 1979, f32=67, link=450),
    "a100-40": _published("a100-40", 1555, 312, 624, f32=19.5),
    "a100-80": _published("a100-80", 2039, 312, 624, f32=19.5),
    "rtx4090": _published("rtx4090", 1008, 165.2, 660.6, f32=82.6),
    "v4": _published("v4", 1228, 275, 275),
    "v5e": _published("v5e", 819, 197, 394, link=100),
    "v5p": _published("v5p", 2765, 459, 918),
    "v6e": _published("v6e", 1638, 918, 1836),
}
