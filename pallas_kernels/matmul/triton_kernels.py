"""Products from planes in Triton, on tensor cores; triton_planes.py and triton_prefill.py call them, and say more."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("these kernels need Triton: pip install 'specjax[gpu-triton]'") from error

from pallas_kernels.triton_rounding import rounded


@triton.jit
def _floats(numbers, at, inside):
    """Numbers [columns] in float32; those in uint16 are the bits of float16."""
    found = tl.load(numbers + at, inside, 0)
    if found.dtype == tl.uint16:
        found = found.to(tl.float16, bitcast=True)
    return found.to(tl.float32)


@triton.jit
def _values(
    codes, OFFSET: tl.constexpr, CODEBOOK: tl.constexpr,
    TABLE0: tl.constexpr, TABLE1: tl.constexpr, TABLE2: tl.constexpr, TABLE3: tl.constexpr,
):  # fmt: skip
    """What codes uint8 stand for, before they are scaled: integers int8."""
    if CODEBOOK:  # four of its integers in each constant
        wide = codes.to(tl.int32)
        low, high = tl.where(wide & 4 == 0, TABLE0, TABLE1), tl.where(wide & 4 == 0, TABLE2, TABLE3)
        values = (tl.where(wide < 8, low, high) >> (wide & 3) * 8).to(tl.int8)
    elif OFFSET == 128:
        values = (codes ^ 128).to(tl.int8, bitcast=True)
    else:
        values = codes.to(tl.int8, bitcast=True) - OFFSET
    return values


@triton.jit
def few_rows(
    index, x, sums, table, plane0, plane1, scales, super_scales, minima, super_minima, shares,
    ROWS: tl.constexpr, PADDED: tl.constexpr, PIECES: tl.constexpr, PARTS: tl.constexpr,
    CHUNKS: tl.constexpr, LANES: tl.constexpr,
    BITS0: tl.constexpr, BITS1: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr, MINIMA: tl.constexpr,
    OFFSET: tl.constexpr, CODEBOOK: tl.constexpr,
    TABLE0: tl.constexpr, TABLE1: tl.constexpr, TABLE2: tl.constexpr, TABLE3: tl.constexpr,
    SPLITS: tl.constexpr, COLUMNS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """The share [rows, columns] that some chunks have in the product of a block of rows with its matrix.

    index [blocks], x [blocks, PIECES, ROWS, depth] bfloat16, sums of x [blocks, ROWS, depth / 32] float32, table
    [PARTS, 16] bfloat16, the parts of a matrix in planes (any array for one that the format has not), shares [SPLITS,
    blocks, ROWS, LANES] float32. Codes stand for sums of PARTS numbers of the table, or, where PARTS is 1, for
    integers. Products of pieces and parts that are below the rounding of float32 are left out. WIDEN is for the
    interpreter, whose products know no bfloat16.
    """
    tile, block, split = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    blocks = tl.num_programs(1)
    row, depth = tl.arange(0, PADDED), tl.arange(0, GROUP)
    column = tile * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < LANES
    in_rows = row[:, None] < ROWS
    matrix = tl.load(index + block).to(tl.int64)
    groups: tl.constexpr = 256 // GROUP
    parts0: tl.constexpr = 32 * BITS0 // GROUP  # in which the bytes of a chunk come
    parts1: tl.constexpr = 32 * BITS1 // GROUP
    total = tl.zeros((PADDED, COLUMNS), tl.float32)
    first = split * (CHUNKS // SPLITS)
    count = tl.where(matrix < 0, 0, CHUNKS // SPLITS).to(tl.int32)
    for chunk in range(first, first + count):
        at = matrix * CHUNKS + chunk
        above = tl.zeros((COLUMNS,), tl.float32)
        below = tl.zeros((COLUMNS,), tl.float32)
        if SUPER:
            above = _floats(super_scales, at * LANES + column, inside)
            if MINIMA:
                below = _floats(super_minima, at * LANES + column, inside)
        for part in tl.static_range(parts0):
            bytes0 = (at * (32 * BITS0) + part * GROUP + depth) * LANES
            low = tl.load(plane0 + bytes0[:, None] + column[None, :], inside[None, :], 0)
            high = low
            if BITS1 > 0:
                bytes1 = (at * (32 * BITS1) + part % parts1 * GROUP + depth) * LANES
                high = tl.load(plane1 + bytes1[:, None] + column[None, :], inside[None, :], 0)
            for field in tl.static_range(8 // BITS0):
                group = field * parts0 + part
                codes = low >> field * BITS0 & (1 << BITS0) - 1
                if BITS1 > 0:  # the shift is spelled out: a variable has 32 bits, and the codes would have them too
                    codes |= (high >> (field * parts0 + part) // parts1 * BITS1 & (1 << BITS1) - 1) << BITS0
                partial = tl.zeros((PADDED, COLUMNS), tl.float32)
                for part_of in tl.static_range(PARTS):
                    if PARTS > 1:
                        values = tl.load(table + part_of * 16 + codes.to(tl.int32))
                    else:
                        values = _values(codes, OFFSET, CODEBOOK, TABLE0, TABLE1, TABLE2, TABLE3)
                    values = values.to(tl.float32 if WIDEN else tl.bfloat16)
                    for piece in tl.static_range(PIECES if PARTS == 1 else PARTS - part_of):
                        rows_at = ((block * PIECES + piece) * ROWS + row[:, None]) * (CHUNKS * 256)
                        factor = tl.load(x + rows_at + (chunk * 256 + group * GROUP + depth)[None, :], in_rows, 0)
                        if WIDEN:
                            factor = factor.to(tl.float32)
                        partial = tl.dot(factor, values, partial)
                scale = _floats(scales, (at * groups + group) * LANES + column, inside)
                if SUPER:
                    scale = above * scale
                total += scale[None, :] * partial
                if MINIMA:
                    minimum = _floats(minima, (at * groups + group) * LANES + column, inside)
                    if SUPER:
                        minimum = -below * minimum
                    sum_at = (block * ROWS + row) * (CHUNKS * groups) + chunk * groups + group
                    total += tl.load(sums + sum_at, row < ROWS, 0)[:, None] * minimum[None, :]
    place = ((split * blocks + block) * ROWS + row[:, None]) * LANES + column[None, :]
    tl.store(shares + place, total, in_rows & inside[None, :])


@triton.jit
def _codes(
    plane, at, group, depth, column, inside,
    BITS: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The bits [GROUP, columns] uint8 that a plane has of a group of a chunk."""
    parts: tl.constexpr = 32 * BITS // GROUP
    bytes_at = (at * (32 * BITS) + group % parts * GROUP + depth) * LANES
    found = tl.load(plane + bytes_at[:, None] + column[None, :], inside[None, :], 0)
    return (found.to(tl.int32) >> group // parts * BITS & (1 << BITS) - 1).to(tl.uint8)


@triton.jit
def many_rows(
    index, x, table, plane0, plane1, scales, super_scales, minima, super_minima, out,
    ROWS: tl.constexpr, TILE: tl.constexpr, PARTS: tl.constexpr, CHUNKS: tl.constexpr, LANES: tl.constexpr,
    BITS0: tl.constexpr, BITS1: tl.constexpr, GROUP: tl.constexpr, SUPER: tl.constexpr, MINIMA: tl.constexpr,
    OFFSET: tl.constexpr, CODEBOOK: tl.constexpr,
    TABLE0: tl.constexpr, TABLE1: tl.constexpr, TABLE2: tl.constexpr, TABLE3: tl.constexpr,
    COLUMNS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """A tile [TILE, columns] of the product of a block of rows with its matrix.

    x [blocks, ROWS, depth] bfloat16, out [blocks, ROWS, LANES] float32; the rest is as for few rows.
    """
    # Programs that follow each other read the same columns of the matrix.
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    block = tl.program_id(2).to(tl.int64)
    depth = tl.arange(0, GROUP)
    inside, in_rows = column < LANES, row[:, None] < ROWS
    matrix = tl.load(index + block).to(tl.int64)
    groups: tl.constexpr = 256 // GROUP
    total = tl.zeros((TILE, COLUMNS), tl.float32)
    steps = tl.where(matrix < 0, 0, CHUNKS * groups).to(tl.int32)
    for step in range(steps):
        group, at = step % groups, matrix * CHUNKS + step // groups
        codes = _codes(plane0, at, group, depth, column, inside, BITS0, GROUP, LANES)
        if BITS1 > 0:
            codes |= _codes(plane1, at, group, depth, column, inside, BITS1, GROUP, LANES) << BITS0
        if PARTS > 1:
            values = tl.zeros((GROUP, COLUMNS), tl.float32)
            for part_of in tl.static_range(PARTS):
                values += tl.load(table + part_of * 16 + codes.to(tl.int32)).to(tl.float32)
        else:
            values = _values(codes, OFFSET, CODEBOOK, TABLE0, TABLE1, TABLE2, TABLE3).to(tl.float32)
        scale = _floats(scales, (at * groups + group) * LANES + column, inside)
        if SUPER:
            scale = _floats(super_scales, at * LANES + column, inside) * scale
        values *= scale[None, :]
        if MINIMA:
            minimum = _floats(minima, (at * groups + group) * LANES + column, inside)
            if SUPER:
                minimum = -_floats(super_minima, at * LANES + column, inside) * minimum
            values += minimum[None, :]
        factor = tl.load(
            x + (block * ROWS + row[:, None]) * (CHUNKS * 256) + (step * GROUP + depth)[None, :], in_rows, 0
        )
        if WIDEN:
            factor = factor.to(tl.float32)
        total = tl.dot(factor, rounded(values, WIDEN), total)
    place = (block * ROWS + row[:, None]) * LANES + column[None, :]
    tl.store(out + place, total, in_rows & inside[None, :])
