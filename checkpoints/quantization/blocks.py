"""Rows of a matrix as the columns that the searches for scales work on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, UInt8

from pallas_kernels.matmul.formats import BlockFormat

Encode = Callable[[Float[np.ndarray, "N K"], Float[np.ndarray, "N K"]], UInt8[np.ndarray, "N bytes"]]
"""Encodes finite float32 rows of whole blocks, given how much an error in each value counts."""


def columns(
    x: Float[np.ndarray, "N K"], weights: Float[np.ndarray, "N K"], values: int
) -> tuple[Float[np.ndarray, "values blocks"], Float[np.ndarray, "values blocks"], Float[np.ndarray, "blocks"]]:
    """Blocks as columns: values over the block's largest magnitude, their weights over the largest weight, and the
    magnitudes. A block of zeros is divided by 1; one whose weights are all 0 gets weights of 1."""
    blocks, block_weights = x.reshape(-1, values), weights.reshape(-1, values)
    largest = np.max(np.abs(blocks), axis=-1)
    largest[largest == 0] = 1
    heaviest = np.max(block_weights, axis=-1, keepdims=True)
    relative = np.divide(block_weights, heaviest, out=np.ones(blocks.shape), where=heaviest > 0)
    return np.ascontiguousarray((blocks / largest[:, None]).T), np.ascontiguousarray(relative.T, np.float32), largest


def assembled(
    kind: BlockFormat,
    codes: Float[np.ndarray, "n sub_blocks"],
    halves: Sequence[Float[np.ndarray, "sub_blocks"]],
    byte_scales: Sequence[Float[np.ndarray, "sub_blocks"]] = (),
) -> UInt8[np.ndarray, "blocks bytes"]:
    """The bytes of blocks.

    Args:
        kind: the format.
        codes: of sub-blocks, several of which may be a block, as columns.
        halves: the float16 numbers of each block, alike in all its sub-blocks.
        byte_scales: those of each sub-block.
    """
    by_block = np.ascontiguousarray(codes.T.astype(np.uint8)).reshape(-1, kind.values)
    numbers = np.stack([half.reshape(len(by_block), -1)[:, 0] for half in halves], axis=-1)
    return kind.assemble(by_block, numbers, [scales.reshape(len(by_block), -1) for scales in byte_scales])
