"""Walsh-Hadamard transforms in Triton, on tensor cores; called by triton_products.py, which says what it does."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("these kernels need Triton: pip install 'specjax[gpu-triton]'") from error

from pallas_kernels.triton_rounding import rounded


@triton.jit
def _times(x, signs, WIDTH: tl.constexpr, WIDEN: tl.constexpr):
    """Vectors x [M, WIDTH] float32 by signs [WIDTH, WIDTH] bfloat16; three numbers of bfloat16 add up to each of x."""
    n = tl.arange(0, WIDTH)
    right = tl.load(signs + n[:, None] * WIDTH + n[None, :])
    if WIDEN:
        right = right.to(tl.float32)
    total = tl.zeros((x.shape[0], WIDTH), tl.float32)
    for _ in tl.static_range(3):
        head = rounded(x, WIDEN)
        total = tl.dot(head, right, total)
        x -= head.to(tl.float32)
    return total


@triton.jit
def transform(
    x, before, after, inner_signs, outer_signs, out,
    COUNT: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr,
    SCALE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """ROWS of the vectors x [COUNT, N]; before and after [N] float32 are their factors.

    A vector is OUTER pieces of INNER values, INNER padded with zeros where N is less. WIDEN is for the interpreter,
    whose products know no bfloat16.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    n = tl.arange(0, INNER * OUTER)
    used = n < N
    at, inside = row[:, None] * N + n[None, :], (row < COUNT)[:, None] & used[None, :]
    values = tl.load(x + at, inside, 0).to(tl.float32) * tl.load(before + n, used, 0)[None, :]
    if OUTER == 1:
        values = _times(values, inner_signs, INNER, WIDEN)
    else:
        pieces = _times(values.reshape(ROWS * OUTER, INNER), inner_signs, INNER, WIDEN)
        across = pieces.reshape(ROWS, OUTER, INNER).permute(0, 2, 1).reshape(ROWS * INNER, OUTER)
        across = _times(across, outer_signs, OUTER, WIDEN)
        values = across.reshape(ROWS, INNER, OUTER).permute(0, 2, 1).reshape(ROWS, INNER * OUTER)
    tl.store(out + at, values * SCALE * tl.load(after + n, used, 0)[None, :], inside)
