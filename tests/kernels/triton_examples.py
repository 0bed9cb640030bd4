"""Triton kernels that try what launches them."""

import triton
import triton.language as tl


@triton.jit
def _half(x):
    return x / 2


@triton.jit
def halve_and_count(x, count, same_count, out, total, N: tl.constexpr, STEP: tl.constexpr):
    """out is x / 2, and total its sum, program by program; odd programs add STEP to their counts, in place."""
    program = tl.program_id(0)
    at = program * N + tl.arange(0, N)
    halves = _half(tl.load(x + at).to(tl.float32))
    tl.store(out + at, halves)
    tl.store(total + program, tl.sum(halves, 0))
    if program % 2 == 1:
        tl.store(count + program, tl.load(count + program) + STEP)


@triton.jit
def move_one(x, whole, part, same_whole, same_part, total, N: tl.constexpr):
    """In place, every whole gives one to its part; total is what both and x come to."""
    tl.static_assert(whole.dtype.element_ty == tl.int32)
    tl.static_assert(part.dtype.element_ty == tl.float32)
    at = tl.arange(0, N)
    tl.store(total + at, tl.load(x + at) + tl.load(whole + at) + tl.load(part + at))
    tl.store(whole + at, tl.load(whole + at) - 1)
    tl.store(part + at, tl.load(part + at) + 1)


@triton.jit
def write_beside(x, out, N: tl.constexpr):
    """Writes one number too many."""
    at = tl.arange(0, N)
    tl.store(out + at + 1, tl.load(x + at))


@triton.jit
def read_beside(x, out, N: tl.constexpr):
    """Reads one number too many."""
    at = tl.arange(0, N)
    tl.store(out + at, tl.load(x + at + 1))


@triton.jit
def fail(x, out, N: tl.constexpr):
    """Adds blocks of sizes that do not go together."""
    tl.store(out + tl.arange(0, N), tl.arange(0, N) + tl.arange(0, 2 * N))
