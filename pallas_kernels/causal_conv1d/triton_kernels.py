"""A causal convolution in Triton; called by triton_taps.py, which says what it does."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("these kernels need Triton: pip install 'specjax[gpu-triton]'") from error

from pallas_kernels.triton_rounding import rounded


@triton.jit
def convolve(
    inputs, weight, out,
    T: tl.constexpr, C: tl.constexpr, TAPS: tl.constexpr, SILU: tl.constexpr,
    TOKENS: tl.constexpr, CHANNELS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """TOKENS and CHANNELS of out [B, T, C], from inputs [B, TAPS - 1 + T, C] and weight [TAPS, C] float32.

    WIDEN is for the interpreter, which rounds to bfloat16 in its own way.
    """
    token = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    row = tl.program_id(2).to(tl.int64)
    used = channel < C
    inside = (token < T)[:, None] & used[None, :]
    total = tl.zeros((TOKENS, CHANNELS), tl.float32)
    for tap in tl.static_range(TAPS):
        at = (row * (TAPS - 1 + T) + tap + token[:, None]) * C + channel[None, :]
        total += tl.load(inputs + at, inside, 0).to(tl.float32) * tl.load(weight + tap * C + channel, used, 0)[None, :]
    if SILU:
        total /= 1 + tl.exp(-total)
    if out.dtype.element_ty == tl.bfloat16:
        total = rounded(total, WIDEN)
    place = (row * T + token[:, None]) * C + channel[None, :]
    tl.store(out + place, total.to(out.dtype.element_ty), inside)
