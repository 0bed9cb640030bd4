"""The layouts of quantized matrices: which one a backend wants, and how to read values back from any."""

from collections.abc import Callable
from dataclasses import replace

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import native, override
from pallas_kernels.matmul import panels, planes
from pallas_kernels.matmul.qtensor import BLOCKS, QTensor


def _decode_blocks(tensor: QTensor) -> Array:
    kind, blocks = tensor.block_format, tensor.parts[BLOCKS]
    values = kind.decode(blocks.reshape(*blocks.shape[:-1], -1, kind.num_bytes))
    return values.reshape(*blocks.shape[:-1], tensor.width)


def _take_blocks(tensor: QTensor, rows: Array) -> Array:
    chosen = jnp.take(tensor.parts[BLOCKS], rows, axis=0, mode="clip")
    kind = tensor.block_format
    return kind.decode(chosen.reshape(*chosen.shape[:-1], -1, kind.num_bytes)).reshape(*rows.shape, tensor.width)


def _keep_blocks(tensor: QTensor, rows: Array) -> dict[str, Array]:
    return {BLOCKS: jnp.take(tensor.parts[BLOCKS], rows, axis=0, mode="clip")}


_DECODE: dict[str, Callable[[QTensor], Array]] = {
    BLOCKS: _decode_blocks,
    panels.PANELS: panels.decode,
    planes.PLANES: planes.decode,
}
_TAKE: dict[str, Callable[[QTensor, Array], Array]] = {
    BLOCKS: _take_blocks,
    panels.PANELS: panels.take,
    planes.PLANES: planes.take,
}

_KEEP: dict[str, Callable[[QTensor, Array], dict[str, Array]]] = {
    BLOCKS: _keep_blocks,
    panels.PANELS: panels.keep,
    planes.PLANES: planes.keep,
}

_ROW_AXIS = {BLOCKS: 0, panels.PANELS: 0, planes.PLANES: -1}

ROWS_THAT_JOIN = 128
"""Matrices of a multiple of so many rows can stand one below the other in every layout."""


def dequantize(tensor: QTensor) -> Float[Array, "... N K"]:
    """Decode the whole matrix to float32."""
    return _DECODE[tensor.layout](tensor)


def take_rows(tensor: QTensor, rows: Int[Array, "..."]) -> Float[Array, "... K"]:
    """Some rows of one matrix [N, K], float32; row numbers out of range are clipped.

    Raises:
        ValueError: the tensor is a stack.
    """
    _check_matrix("take_rows", tensor)
    return _TAKE[tensor.layout](tensor, rows)


def packed_submatrix(tensor: QTensor, rows: Int[Array, " M"]) -> QTensor:
    """A matrix [M, K] of some rows of one matrix [N, K], as packed as they are; numbers out of range are clipped.

    Raises:
        ValueError: the tensor is a stack.
    """
    _check_matrix("submatrix", tensor)
    return replace(tensor, parts=_KEEP[tensor.layout](tensor, rows), rows=rows.shape[0])


def packed_joined(first: QTensor, *others: QTensor) -> QTensor:
    """Matrices of one kind one below the other. Each has a multiple of `ROWS_THAT_JOIN` rows."""
    every, axis = (first, *others), _ROW_AXIS[first.layout]
    parts = {name: jnp.concatenate([each.parts[name] for each in every], axis=axis) for name in first.parts}
    return replace(first, parts=parts, rows=sum(each.rows for each in every))


def _check_matrix(name: str, tensor: QTensor) -> None:
    if tensor.ndim != 2:
        raise ValueError(f"{name}: rows are taken from one matrix [N, K]; got a stack {tensor.shape}")


def prepare(tensor: QTensor) -> QTensor:
    """The tensor in the layout that is fastest on the default device; made once, when a model is loaded.

    On a CPU with native kernels that is "panels16", on a TPU or GPU "planes". Otherwise the tensor
    stays as it is. `using(platform=...)` asks for the layout of another platform.
    """
    backend = override.current_platform()
    if tensor.layout != BLOCKS:
        return tensor
    if backend == "cpu" and native.available():
        return panels.pack(tensor)
    if backend in ("gpu", "tpu"):
        return planes.pack(tensor)
    return tensor
