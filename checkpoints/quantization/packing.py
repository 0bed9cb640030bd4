"""Fields of a few bits into bytes: the inverse of the readings in `pallas_kernels.matmul.formats`."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, UInt8


def stored_half(x: Float[np.ndarray, "..."]) -> tuple[UInt8[np.ndarray, "... 2"], Float[np.ndarray, "..."]]:
    """The bytes of x as float16, and the float32 that they are read as; what exceeds float16 becomes an infinity."""
    with np.errstate(over="ignore"):
        stored = np.ascontiguousarray(x, np.float32).astype("<f2")
    return stored[..., None].view(np.uint8), stored.astype(np.float32)


def planes(codes: UInt8[np.ndarray, "... count n"], width: int) -> UInt8[np.ndarray, "... n"]:
    """Fields of `width` bits, those of the first plane lowest; higher bits of the codes are dropped."""
    out = np.zeros((*codes.shape[:-2], codes.shape[-1]), np.uint8)
    for i in range(codes.shape[-2]):
        out |= (codes[..., i, :] & ((1 << width) - 1)) << (width * i)
    return out


def halves(codes: UInt8[np.ndarray, "... n"]) -> UInt8[np.ndarray, "... n/2"]:
    """Fields of four bits: the first half of the codes in the low ones."""
    return planes(codes.reshape(*codes.shape[:-1], 2, -1), 4)


def fields(codes: UInt8[np.ndarray, "... n"], width: int) -> UInt8[np.ndarray, "... bytes"]:
    """Fields of `width` bits (1, 2 or 4), one after the other, low bits of each byte first."""
    return planes(np.swapaxes(codes.reshape(*codes.shape[:-1], -1, 8 // width), -1, -2), width)
