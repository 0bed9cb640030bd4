"""Block sizes of the kernels for accelerators. Those for TPU do not change a result."""

from dataclasses import dataclass

from pallas_kernels.block_sizes import BlockSizes, at_least_one, multiple_of, one_of
from pallas_kernels.matmul.formats import FORMATS, BlockFormat
from pallas_kernels.matmul.planes import CHUNK, GROUP, LANES
from pallas_kernels.table import Dims

FEW_ROWS = 16
"""So many rows at most take the form that is bound by reading the matrix."""
VMEM_BUDGET = 12 << 20
"""Bytes that the blocks and values of a TPU kernel may take: three quarters of what Mosaic grants by default."""


@dataclass(frozen=True)
class TpuConfig(BlockSizes):
    """Blocks of a grid step.

    Attributes:
        rows: of x; a multiple of 8.
        columns: rows of the matrix, which are columns of the result; a multiple of 128.
        depth: columns of the matrix; a multiple of 256 that divides the padded width.
    """

    rows: int = multiple_of(8)
    columns: int = multiple_of(LANES)
    depth: int = multiple_of(CHUNK)


def tpu_heuristic(dims: Dims) -> TpuConfig:
    """A configuration for M rows (of each block, if there is an index), N, K and a format.

    Work on x is shared by the columns of a tile, and work on the matrix by its rows; the depth is such that a block of
    codes is about a megabyte.
    """
    return max(
        tpu_candidates(dims),
        key=lambda config: (min(config.columns, 512), config.rows, -abs(config.depth - 2048), -config.columns),
    )


def tpu_candidates(dims: Dims) -> list[TpuConfig]:
    """Configs that fit into VMEM and have blocks of whole tiles."""
    kind, chunks = FORMATS[dims["format"]], -(-dims["K"] // CHUNK)
    lanes = -(-dims["N"] // LANES) * LANES
    few = dims["M"] <= FEW_ROWS
    return [
        config
        for rows in ([8 if dims["M"] <= 8 else 16] if few else [32, 64, 128, 256])
        if rows <= 32 or rows < 2 * dims["M"]  # what is more would be zeros only
        for columns in (128, 256, 512, 1024)
        if columns <= max(lanes, LANES)
        for count in range(1, chunks + 1)
        if count == chunks or (chunks % count == 0 and count * CHUNK % _depth_unit(kind) == 0)
        if _vmem(kind, config := TpuConfig(rows, columns, count * CHUNK), chunks) <= VMEM_BUDGET
    ]


def _depth_unit(kind: BlockFormat) -> int:
    """Columns of which the scales fill whole tiles: 32 rows of bytes or 16 of halves."""
    return 32 * kind.per_scale if "super" in kind.scales else 16 * GROUP


def _vmem(kind: BlockFormat, config: TpuConfig, chunks: int) -> int:
    """Bytes: two buffers of each block, scales as floats, and the values of a chunk with their bfloat16 parts."""
    group = kind.per_scale
    rows, columns, depth = config.rows, config.columns, config.depth
    supers = 4 * chunks * columns * ("super" in kind.scales)
    moved = (
        depth * columns * sum(kind.planes) // 8 + depth // group * columns * 4 + supers + 4 * rows * (depth + columns)
    )
    kept = 2 * (4 * depth // group * columns + supers)
    products = 4 * columns * (3 * LANES // group * rows if rows <= FEW_ROWS else rows)
    return 2 * moved + kept + 20 * CHUNK * columns + products


@dataclass(frozen=True)
class GpuConfig(BlockSizes):
    """What a program of one warpgroup takes.

    Attributes:
        columns: rows of the matrix, which are columns of the result: 128, 256 or 512.
        splits: shares of the depth, as equal as groups of rows of the first plane can be shared. It changes how sums
            are rounded.
    """

    columns: int = one_of(128, 256, 512)
    splits: int = at_least_one()


MULTIPROCESSORS, PROGRAMS = 132, {128: 4, 256: 3, 512: 2}
"""Of an H100, and how many programs one of them holds at a time, by their columns: so many as registers allow for four
rows. With more rows it can be fewer."""
PROGRAMS_OF_FORMATS = {
    "Q8_0": 4, "Q4_0": 4, "Q6_K": 4, "IQ4_NL": 4, "IQ4_XS": 4, "TQ4_1S": 4, "Q5_K": 2, "TQ3_1S": 2,
}  # fmt: skip
"""The same of 256 columns, for the formats of which it is not three."""
STARTING, ADDING = 1 / 4, 1e-6
"""Estimates: what a program takes to start, and a share for each column to be added, in times of a chunk."""
SHARES = 2
"""So many at most for each chunk of 256."""


def gpu_heuristic(dims: Dims) -> GpuConfig:
    """A configuration for N, K and a format: eight columns a thread, and splits that keep the GPU busy to the end."""
    return next(config for config in reversed(gpu_candidates(dims)) if config.columns <= 256)


def gpu_candidates(dims: Dims) -> list[GpuConfig]:
    """Configs for N and K: the numbers of splits that should be the fastest, the best one last."""
    lanes = -(-dims["N"] // LANES) * LANES
    return [
        GpuConfig(columns, splits)
        for columns in (128, 256, 512)
        if columns <= lanes
        for splits in _splits(dims, columns)
    ]


def programs_at_a_time(format: str, columns: int) -> int:
    """How many programs a multiprocessor holds."""
    return PROGRAMS_OF_FORMATS.get(format, PROGRAMS[columns]) if columns == 256 else PROGRAMS[columns]


def _splits(dims: Dims, columns: int) -> list[int]:
    """The three best numbers of splits, the best one last: no split where tiles alone fill the GPU.

    Programs begin together, as many as the GPU holds; the next ones begin when these end. A last round of few programs
    takes as long as a full one.
    """
    chunks, tiles = -(-dims["K"] // CHUNK), -(-dims["N"] // columns)
    places = MULTIPROCESSORS * programs_at_a_time(dims["format"], columns)

    def time(splits: int) -> float:
        return -(-tiles * splits // places) * (chunks / splits + STARTING) + ADDING * splits * dims["N"]

    return sorted(range(1, SHARES * chunks + 1), key=time, reverse=True)[-3:] if tiles < places else [1]
