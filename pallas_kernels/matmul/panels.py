"""The layout "panels16": sixteen rows side by side, as the native CPU kernels read them.

`pallas_kernels/native/csrc/quant_matmul/panels.h` describes it: groups of 32 columns, codes in planes of bits, scales
apart. Here it is made from blocks, by a native function, and read back in XLA.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
from jax import Array, lax

from pallas_kernels import native
from pallas_kernels.matmul.formats import FORMATS, BlockFormat
from pallas_kernels.matmul.qtensor import BLOCKS, QTensor

PANELS = "panels16"
CODES, SCALES = "codes", "scales"
LANES = 16
"""How many rows a panel has."""
GROUP = 32
"""How many columns a group has."""
_VECTOR = 64  # bytes: 16 rows of 4 columns


def panel_bytes(format: str, width: int) -> tuple[int, int]:
    """Bytes of the codes and of the scales of a panel of `width` columns."""
    kind = FORMATS[format]
    per_block = LANES * (2 * kind.halves + sum(scales.count for scales in kind.byte_scales))
    return width // GROUP * sum(kind.planes) * _VECTOR, width // kind.values * per_block


def pack(tensor: QTensor) -> QTensor:
    """A tensor in the layout "blocks" as panels: one copy, made by the native library.

    Raises:
        RuntimeError: there is no native library.
    """
    parts = _packer(tensor.format, tensor.width)(tensor.parts[BLOCKS])
    return replace(tensor, parts=parts, layout=PANELS)


@cache
def _packer(format: str, width: int) -> Callable[[Array], dict[str, Array]]:
    sizes = panel_bytes(format, width)
    symbol = native.target("specjax_quant_pack")

    def run(blocks: Array) -> dict[str, Array]:
        *lead, rows, row_bytes = blocks.shape
        matrices = blocks.reshape(-1, rows, row_bytes)
        panels = -(-rows // LANES)
        results = [jax.ShapeDtypeStruct((matrices.shape[0], panels, size), jnp.uint8) for size in sizes]
        parts = jax.ffi.ffi_call(symbol, results)(matrices, format=format)
        return {name: part.reshape(*lead, *part.shape[1:]) for name, part in zip((CODES, SCALES), parts, strict=True)}

    return jax.jit(run)


def decode(tensor: QTensor) -> Array:
    """All values [..., N, K], float32."""
    codes, scales = tensor.parts[CODES], tensor.parts[SCALES]
    quads = jnp.moveaxis(codes.reshape(*codes.shape[:-1], -1, LANES, 4), -2, -3)
    values = _values(tensor, quads, *_lanes(tensor, scales))
    return values.reshape(*codes.shape[:-2], -1, tensor.width)[..., : tensor.rows, :]


def take(tensor: QTensor, rows: Array) -> Array:
    """Some rows of one matrix [N, K], float32; row numbers out of range are clipped."""
    panel, lane = jnp.divmod(jnp.clip(rows, 0, tensor.rows - 1), LANES)
    codes = tensor.parts[CODES]
    quads = codes.reshape(codes.shape[0], -1, LANES, 4)[panel, :, lane]
    at = lane.reshape(*lane.shape, 1, 1, 1)
    scales = (
        jnp.take_along_axis(part, at, axis=-3)[..., 0, :, :] for part in _lanes(tensor, tensor.parts[SCALES][panel])
    )
    return _values(tensor, quads, *scales)


def keep(tensor: QTensor, rows: Array) -> dict[str, Array]:
    """The parts of a matrix of some rows of one matrix [N, K]; row numbers out of range are clipped."""
    rows = jnp.pad(rows, (0, -rows.shape[0] % LANES), mode="edge")
    panel, lane = jnp.divmod(jnp.clip(rows, 0, tensor.rows - 1), LANES)
    codes, scales = tensor.parts[CODES], tensor.parts[SCALES]
    blocks, count = tensor.width // tensor.block_format.values, rows.shape[0] // LANES
    halves = 2 * LANES * tensor.block_format.halves

    def gathered(part: Array, size: int) -> Array:
        """Fields of so many bytes of these rows, from [panels, n, fields of all lanes]."""
        own = part.reshape(*part.shape[:2], part.shape[2] // (LANES * size), LANES, size)[panel, :, :, lane]
        return jnp.moveaxis(own.reshape(count, LANES, *own.shape[1:]), 1, 3).reshape(count, *part.shape[1:])

    by_block = scales.reshape(scales.shape[0], blocks, scales.shape[1] // blocks)
    both = gathered(by_block[..., :halves], 2), gathered(by_block[..., halves:], 1)
    return {
        CODES: gathered(codes[:, None], 4)[:, 0],
        SCALES: jnp.concatenate(both, axis=-1).reshape(count, scales.shape[1]),
    }


def _lanes(tensor: QTensor, scales: Array) -> tuple[Array, Array]:
    """Scales of panels [..., bytes], by row: the float16 ones as floats, then those of bytes, [..., 16, blocks, n]."""
    halves = 2 * LANES * tensor.block_format.halves
    blocks = scales.reshape(*scales.shape[:-1], tensor.width // tensor.block_format.values, -1)
    pairs = blocks[..., :halves].reshape(*blocks.shape[:-1], -1, LANES, 2)
    floats = lax.bitcast_convert_type(pairs, jnp.float16).astype(jnp.float32)
    subs = blocks[..., halves:].reshape(*blocks.shape[:-1], -1, LANES)
    return jnp.moveaxis(floats, -1, -3), jnp.moveaxis(subs, -1, -3)


def _values(tensor: QTensor, quads: Array, floats: Array, subs: Array) -> Array:
    """Values of rows [..., K] from their codes [..., vectors, 4] and scales."""
    kind, lead = tensor.block_format, quads.shape[:-2]
    codes = _codes(kind, quads.reshape(*lead, -1, sum(kind.planes), 4)).reshape(*floats.shape[:-1], kind.values)
    scales: tuple[Array, ...] = ()
    if kind.byte_scales:
        scales = (subs[..., ::2], subs[..., 1::2]) if kind.affine else (lax.bitcast_convert_type(subs, jnp.int8),)
    return kind.scaled(codes, floats, scales).reshape(*lead, tensor.width)


def _codes(kind: BlockFormat, vectors: Array) -> Array:
    """Codes [..., groups, 32] of the vectors [..., groups, planes' bits, 4] of a row."""
    codes, first, shift = jnp.zeros((), jnp.uint8), 0, 0
    for width in kind.planes:
        plane = vectors[..., first : first + width, :]
        fields = jnp.stack([plane >> at & ((1 << width) - 1) for at in range(0, 8, width)], axis=-3)
        codes = codes | fields.reshape(*vectors.shape[:-2], GROUP) << shift
        first, shift = first + width, shift + width
    return codes
