"""The layout "planes": codes and scales apart, columns of the matrix along the second last axis, as accelerators read.

Every part is [..., R, N'], where N' is N rounded up to whole lanes and R counts what K', K rounded up to whole chunks
of 256, comes to in that part. Padding has scales of zero.

Codes lie in planes of 1, 2, 4 or 8 bits. Of a chunk, byte r of a plane of w bits holds the fields of the columns
r, 32 w + r, 2 * 32 w + r, ..., low bits first: unpacked, the fields follow one another without shuffling. Float16
numbers are kept as their bits (uint16), since Mosaic's kernels for TPU know no float16. So a value takes as many bits
as in files, except that the 6-bit scales of Q4_K, Q5_K and IQ4_XS take bytes: one eighth, or one sixteenth, of a bit.

| scales | parts beside the codes | value of a code c |
| --- | --- | --- |
| one | scales u16 [K'/32] | scale * c |
| affine | scales, minima u16 [K'/32] | scale * c + minimum |
| super_affine | super_scales, super_minima u16 [K'/256], scales, minima u8 [K'/32] | d * scale * c - m * minimum |
| super_signed | super_scales u16 [K'/256], scales i8 [K'/32] | d * scale * c |
| super_signed_halves | super_scales u16 [K'/256], scales i8 [K'/16] | d * scale * c |
| halves | scales u16 [K'/16] | scale * c; then rotated |

d and m are the super scale and the super minimum. Products of scales and codes are exact in float32, but for rotated
formats, whose codes stand for any floats. Kernels multiply these as they lie: rotating the activations instead of the
matrix gives the same products.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int, Shaped, UInt8

from pallas_kernels.elementwise import look_up
from pallas_kernels.matmul.formats import FORMATS, BlockFormat, tq_rotation, turned
from pallas_kernels.matmul.qtensor import BLOCKS, QTensor
from pallas_kernels.override import current_platform

PLANES = "planes"
CHUNK = 256
"""Columns that are packed, and decoded, together."""
LANES = 128
GROUP = 32
"""Columns that share a minimum, and mostly a scale."""


def plane_names(kind: BlockFormat) -> tuple[str, ...]:
    """Names of the parts that hold codes, low bits first."""
    return tuple(f"plane{i}" for i in range(len(kind.planes)))


def pack(tensor: QTensor) -> QTensor:
    """A tensor in the layout "blocks" in planes; made on the default device, one matrix of a stack at a time."""
    return replace(tensor, parts=_pack(tensor.parts[BLOCKS], tensor.format), layout=PLANES)


@partial(jax.jit, static_argnames="format")
def _pack(blocks: Array, format: str) -> dict[str, Array]:
    *lead, rows, row_bytes = blocks.shape
    packed = lax.map(lambda matrix: _pack_matrix(matrix, format), blocks.reshape(-1, rows, row_bytes))
    return {name: part.reshape(*lead, *part.shape[1:]) for name, part in packed.items()}


def _pack_matrix(blocks: UInt8[Array, "N bytes"], format: str) -> dict[str, Array]:
    kind = FORMATS[format]
    blocks = blocks.reshape(blocks.shape[0], -1, kind.num_bytes)
    width = blocks.shape[1] * kind.values

    def part(fields: Array, columns: int) -> Array:
        """From [N, blocks, fields of a block], one for so many columns."""
        rows = fields.reshape(fields.shape[0], -1).T
        return jnp.pad(rows, ((0, -(-width // CHUNK) * CHUNK // columns - len(rows)), (0, -rows.shape[1] % LANES)))

    parts, shift = {}, 0
    codes = part(kind.codes.read(blocks), 1).reshape(-1, CHUNK, -(-blocks.shape[0] // LANES) * LANES)
    for name, bits in zip(plane_names(kind), kind.planes, strict=True):
        fields = (codes >> shift & (1 << bits) - 1).reshape(len(codes), 8 // bits, 32 * bits, -1)
        plane = sum((fields[:, i] << bits * i for i in range(8 // bits)), jnp.zeros((), jnp.uint8))
        parts[name] = plane.reshape(-1, plane.shape[-1])
        shift += bits
    halves = kind.half_bits(blocks)
    if kind.rotated:
        return parts | {"scales": part(halves, kind.per_scale)}
    for i, name in enumerate(("scales", "minima")[: kind.halves]):
        parts[f"super_{name}" if kind.byte_scales else name] = part(halves[..., i], kind.values)
        if kind.byte_scales:
            parts[name] = part(kind.byte_scales[i].values(blocks), kind.per_scale)
    return parts


def decode(tensor: QTensor) -> Array:
    """All values [..., N, K], float32."""
    kind = FORMATS[tensor.format]
    whole = jnp.swapaxes(values(kind, tensor.parts), -1, -2)[..., : tensor.rows, : tensor.width]
    return turned(whole, tq_rotation()) if kind.rotated else whole


def values(kind: BlockFormat, parts: Mapping[str, Shaped[Array, "... R N"]]) -> Float[Array, "... K N"]:
    """All values, as they lie: padded, and rotated where the matrix is."""
    codes, shift = jnp.zeros((), jnp.uint8), 0
    for name, bits in zip(plane_names(kind), kind.planes, strict=True):
        *lead, _, lanes = parts[name].shape
        of_fields = np.arange(0, 8, bits, dtype=np.uint8)[:, None, None]
        fields = parts[name].reshape(*lead, -1, 1, 32 * bits, lanes) >> of_fields & (1 << bits) - 1
        codes = codes | fields.reshape(*lead, -1, lanes) << shift
        shift += bits

    def read(name: str) -> Array:  # one for each group
        numbers, groups = floats(parts[name]), parts[name.removeprefix("super_")].shape[-2]
        return jnp.repeat(numbers, groups // numbers.shape[-2], axis=-2)

    scale, bias = scale_and_bias(parts, read)
    groups = code_values(kind, codes).reshape(*scale.shape[:-1], kind.per_scale, lanes) * scale[..., None, :]
    if bias is not None:
        groups = groups + bias[..., None, :]
    return groups.reshape(codes.shape)


def take(tensor: QTensor, rows: Array) -> Array:
    """Some rows of one matrix [N, K], float32; row numbers out of range are clipped."""
    chosen = jnp.clip(rows, 0, tensor.rows - 1).reshape(-1)
    parts = {name: _take_columns(part, chosen) for name, part in tensor.parts.items()}
    return decode(replace(tensor, parts=parts, rows=chosen.size)).reshape(*rows.shape, tensor.width)


def keep(tensor: QTensor, rows: Int[Array, " M"]) -> dict[str, Array]:
    """The parts of a matrix of some rows of one matrix [N, K]; row numbers out of range are clipped."""
    chosen, padding = jnp.clip(rows, 0, tensor.rows - 1), -rows.shape[0] % LANES
    parts = {name: _take_columns(part, chosen) for name, part in tensor.parts.items()}
    return {name: jnp.pad(part, ((0, 0), (0, padding))) for name, part in parts.items()}


def _take_columns(part: Shaped[Array, "R N"], chosen: Int[Array, " M"]) -> Shaped[Array, "R M"]:
    return take_from_tiles(part, chosen) if current_platform() == "tpu" else jnp.take(part, chosen, axis=-1)


def take_from_tiles(part: Shaped[Array, "R N"], chosen: Int[Array, " M"]) -> Shaped[Array, "R M"]:
    """Columns, each from a slice of whole lanes.

    XLA's gather for TPUs wants the gathered axis first, and copies the whole table to have it there; so do slices of
    one column.
    """

    def column(number: Array) -> Array:
        tile = lax.dynamic_slice_in_dim(part, number // LANES * LANES, LANES, axis=-1)
        return jnp.sum(jnp.where(jnp.arange(LANES) == number % LANES, tile, 0), axis=-1, dtype=part.dtype)

    return lax.map(column, chosen).T


def floats(part: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """Scales as they lie in planes, halves as their bits or small integers, in float32."""
    return (lax.bitcast_convert_type(part, jnp.float16) if part.dtype == jnp.uint16 else part).astype(jnp.float32)


def scale_and_bias(
    parts: Collection[str], read: Callable[[str], Float[Array, "..."]]
) -> tuple[Float[Array, "..."], Float[Array, "..."] | None]:
    """What codes are multiplied with, and what is added to the products where that is something.

    Args:
        parts: their names.
        read: gives those numbers of a part that belong to the codes at hand.
    """

    def whole(name: str) -> Array:
        return read(name) * read(f"super_{name}") if f"super_{name}" in parts else read(name)

    if "minima" not in parts:
        return whole("scales"), None
    return whole("scales"), -whole("minima") if "super_minima" in parts else whole("minima")


def chunk_codes(kind: BlockFormat, planes: Sequence[Shaped[Array, "... bytes N"]]) -> Int[Array, "... 256 N"]:
    """Codes of chunks from their bytes in each plane, as integers of the type that the bytes come in."""
    codes, shift = jnp.zeros((), planes[0].dtype), 0
    for plane, bits in zip(planes, kind.planes, strict=True):
        fields = [plane >> at & (1 << bits) - 1 for at in range(0, 8, bits)]
        codes = codes | jnp.concatenate(fields, axis=-2) << shift
        shift += bits
    return codes


def code_values(kind: BlockFormat, codes: Int[Array, "..."]) -> Float[Array, "..."]:
    """What codes stand for before they are scaled, as float32: integers that bfloat16 can hold too, if not rotated."""
    if kind.table is None:
        return codes.astype(jnp.float32) - kind.codes.offset
    return look_up(kind.table, codes)
