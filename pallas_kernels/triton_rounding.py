"""Rounding for products on tensor cores, in Triton."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("these kernels need Triton: pip install 'specjax[gpu-triton]'") from error


@triton.jit
def rounded(x, WIDEN: tl.constexpr):
    """Float32 numbers in bfloat16, for a product.

    WIDEN leaves them in float32, rounded: Triton's interpreter has no products of bfloat16, and cuts where GPUs round.
    """
    if WIDEN:
        bits = x.to(tl.int32, bitcast=True)
        nearest = (bits + 0x7FFF + (bits >> 16 & 1) & -65536).to(tl.float32, bitcast=True)
        result = tl.where(x == x, nearest, x)  # the carry would make a number of some NaN, such as guard memory
    else:
        result = x.to(tl.bfloat16)
    return result
