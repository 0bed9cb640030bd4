"""Random matrices in block formats, to try kernels with."""

import math
from collections.abc import Sequence

import numpy as np

from pallas_kernels.matmul.formats import FORMATS


def random_blocks(
    rng: np.random.Generator, name: str, shape: tuple[int, ...], halves: float | Sequence[float] = 0.01
) -> np.ndarray:
    """The bytes of a random matrix in a block format, [..., bytes of a row]; `halves` are its float16 numbers."""
    kind = FORMATS[name]
    blocks = rng.integers(0, 256, (math.prod(shape) // kind.values, kind.num_bytes), np.uint8)
    stored = np.resize(np.asarray(halves, np.float16), kind.halves).view(np.uint8)
    blocks[:, kind.first_half : kind.first_half + len(stored)] = stored
    return blocks.reshape(*shape[:-1], kind.row_bytes(shape[-1]))
