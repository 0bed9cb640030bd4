"""The gated delta rule in Triton: a program holds some columns of a head's state in registers.

The kernels for few tokens take each token in the same operations, so that `commit` gives the state that verification
had. triton_recurrence.py calls them, and triton_prefill.py the one that takes whole chunks.
"""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("these kernels need Triton: pip install 'specjax[gpu-triton]'") from error

from pallas_kernels.triton_rounding import rounded


@triton.jit
def _columns(DV: tl.constexpr, COLUMNS: tl.constexpr):
    """The columns of this program, and which of them exist."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    return columns, columns < DV


@triton.jit
def _key_head(head, HK: tl.constexpr, HV: tl.constexpr, GROUPED: tl.constexpr):
    return head // (HV // HK) if GROUPED else head % HK


@triton.jit
def _count(n, row, most: tl.constexpr):
    """n[row], and never more than there are, nor fewer than none: memory beside an array is not touched."""
    return tl.minimum(tl.maximum(tl.load(n + row), 0), most)


@triton.jit
def _decayed(state, g, at):
    return state * tl.exp(tl.load(g + at).to(tl.float32))


@triton.jit
def _updated(state, k, u):
    """With an explicit fma: whether a compiler makes one of a product and a sum depends on what is around them."""
    return tl.fma(tl.broadcast_to(k[:, None], state.shape), tl.broadcast_to(u[None, :], state.shape), state)


@triton.jit
def _token(
    state, q, k, v, g, beta, at, head, rows, columns, SCALE: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr,
    DK: tl.constexpr, DV: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """State, output and u after token `at`, counted over all rows."""
    in_rows, in_columns = rows < DK, columns < DV
    key, value = at * HK + _key_head(head, HK, HV, GROUPED), at * HV + head
    q_t = tl.load(q + key * DK + rows, in_rows, 0).to(tl.float32)
    k_t = tl.load(k + key * DK + rows, in_rows, 0).to(tl.float32)
    v_t = tl.load(v + value * DV + columns, in_columns, 0).to(tl.float32)
    state = _decayed(state, g, value)
    u_t = tl.load(beta + value).to(tl.float32) * (v_t - tl.sum(state * k_t[:, None], 0))
    state = _updated(state, k_t, u_t)
    return state, SCALE * tl.sum(state * q_t[:, None], 0), u_t


@triton.jit
def _zeros(out, row, head, count, columns, T: tl.constexpr, HV: tl.constexpr, DV: tl.constexpr, COLUMNS: tl.constexpr):
    """What tokens from `count` on get in [B, T, Hv, Dv]."""
    for t in range(count, T):
        tl.store(out + ((row * T + t) * HV + head) * DV + columns, tl.zeros((COLUMNS,), tl.float32), columns < DV)


@triton.jit
def verify(
    q, k, v, g, beta, state, n_valid, out, u,
    T: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SCALE: tl.constexpr,
    GROUPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Outputs and u [B, T, Hv, Dv] of n_valid[b] tokens, and zeros for the others; a program for each row and head."""
    row, head = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    rows = tl.arange(0, ROWS)
    columns, in_columns = _columns(DV, COLUMNS)
    places = rows[:, None] * DV + columns[None, :]
    tile = tl.load(state + (row * HV + head) * DK * DV + places, (rows < DK)[:, None] & in_columns[None, :], 0)
    count = _count(n_valid, row, T)
    for t in range(count):
        at = row * T + t
        scalar = at * HV + head
        tile, out_t, u_t = _token(tile, q, k, v, g, beta, at, head, rows, columns, SCALE, HK, HV, DK, DV, GROUPED)
        tl.store(out + scalar * DV + columns, out_t, in_columns)
        tl.store(u + scalar * DV + columns, u_t, in_columns)
    _zeros(out, row, head, count, columns, T, HV, DV, COLUMNS)
    _zeros(u, row, head, count, columns, T, HV, DV, COLUMNS)


@triton.jit
def commit(
    k, u, g, n_valid, state, same_state,
    T: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, GROUPED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The state after n_valid[b] records, in place; a row that keeps none is not touched."""
    row, head = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    rows = tl.arange(0, ROWS)
    columns, in_columns = _columns(DV, COLUMNS)
    count = _count(n_valid, row, T)
    if count > 0:
        places = state + (row * HV + head) * DK * DV + rows[:, None] * DV + columns[None, :]
        inside = (rows < DK)[:, None] & in_columns[None, :]
        tile = tl.load(places, inside, 0)
        key_head = _key_head(head, HK, HV, GROUPED)
        for t in range(count):
            at = row * T + t
            scalar = at * HV + head
            k_t = tl.load(k + (at * HK + key_head) * DK + rows, rows < DK, 0).to(tl.float32)
            u_t = tl.load(u + scalar * DV + columns, in_columns, 0)
            tile = _updated(_decayed(tile, g, scalar), k_t, u_t)
        tl.store(places, tile, inside)


@triton.jit
def extend(
    q, k, v, g, beta, n_valid, state, same_state, out,
    T: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr, SCALE: tl.constexpr,
    GROUPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Outputs as `verify`, and the state after n_valid[b] tokens, in place; a row without tokens is not touched."""
    row, head = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    rows = tl.arange(0, ROWS)
    columns, in_columns = _columns(DV, COLUMNS)
    count = _count(n_valid, row, T)
    if count > 0:
        places = state + (row * HV + head) * DK * DV + rows[:, None] * DV + columns[None, :]
        inside = (rows < DK)[:, None] & in_columns[None, :]
        tile = tl.load(places, inside, 0)
        for t in range(count):
            at = row * T + t
            scalar = at * HV + head
            tile, out_t, _ = _token(tile, q, k, v, g, beta, at, head, rows, columns, SCALE, HK, HV, DK, DV, GROUPED)
            tl.store(out + scalar * DV + columns, out_t, in_columns)
        tl.store(places, tile, inside)
    _zeros(out, row, head, count, columns, T, HV, DV, COLUMNS)


@triton.jit
def verify_snapshots(
    q, k, v, g, beta, slot, n_valid, slots, same_slots, out,
    T: tl.constexpr, M: tl.constexpr, HK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    SCALE: tl.constexpr, GROUPED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Outputs as `verify`, and the newest states in the slots, in place; slots that get none are not touched."""
    row, head = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    rows = tl.arange(0, ROWS)
    columns, in_columns = _columns(DV, COLUMNS)
    inside = (rows < DK)[:, None] & in_columns[None, :]
    places = slots + rows[:, None] * DV + columns[None, :]
    tile = tl.load(places + ((row * M + _count(slot, row, M - 1)) * HV + head) * DK * DV, inside, 0)
    count = _count(n_valid, row, T)
    for t in range(count):
        at = row * T + t
        scalar = at * HV + head
        tile, out_t, _ = _token(tile, q, k, v, g, beta, at, head, rows, columns, SCALE, HK, HV, DK, DV, GROUPED)
        tl.store(out + scalar * DV + columns, out_t, in_columns)
        age = count - 1 - t
        if age < M:
            tl.store(places + ((row * M + age) * HV + head) * DK * DV, tile, inside)
    _zeros(out, row, head, count, columns, T, HV, DV, COLUMNS)


@triton.jit
def _product(left, right, WIDEN: tl.constexpr):
    """Of float32 matrices, each the sum of two numbers of bfloat16; the product of the low ones is left out."""
    left_high, right_high = rounded(left, WIDEN), rounded(right, WIDEN)
    left_low = rounded(left - left_high.to(tl.float32), WIDEN)
    right_low = rounded(right - right_high.to(tl.float32), WIDEN)
    total = tl.dot(left_low, right_high)
    total = tl.dot(left_high, right_low, total)
    return tl.dot(left_high, right_high, total)


@triton.jit
def prefill(
    n_chunks, decay, u_alone, u_of_state, q, queries_keys, k, state, same_state, out,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr, HV: tl.constexpr, DK: tl.constexpr, DV: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Outputs [B, Hv, CHUNKS, CHUNK, Dv] of the first n_chunks[b] chunks, and the state after them, in place.

    The operands are `Chunks` of xla_chunked.py, their Dk padded to ROWS, the queries scaled. WIDEN is for the
    interpreter, whose products know no bfloat16.
    """
    row, head = (tl.program_id(0) // HV).to(tl.int64), tl.program_id(0) % HV
    rows, token = tl.arange(0, ROWS), tl.arange(0, CHUNK)
    columns, in_columns = _columns(DV, COLUMNS)
    places = state + (row * HV + head) * DK * DV + rows[:, None] * DV + columns[None, :]
    inside = (rows < DK)[:, None] & in_columns[None, :]
    tile = tl.load(places, inside, 0)
    by_keys = token[:, None] * ROWS + rows[None, :]
    by_values = token[:, None] * DV + columns[None, :]
    for chunk in range(_count(n_chunks, row, CHUNKS)):
        at = (row * HV + head) * CHUNKS + chunk
        own = tl.load(u_alone + at * CHUNK * DV + by_values, in_columns[None, :], 0)
        u = own - _product(tl.load(u_of_state + at * CHUNK * ROWS + by_keys), tile, WIDEN)
        among = tl.load(queries_keys + at * CHUNK * CHUNK + token[:, None] * CHUNK + token[None, :])
        result = _product(tl.load(q + at * CHUNK * ROWS + by_keys), tile, WIDEN) + _product(among, u, WIDEN)
        tl.store(out + at * CHUNK * DV + by_values, result, in_columns[None, :])
        keys = tl.load(k + at * CHUNK * ROWS + by_keys)
        tile = tile * tl.load(decay + at) + _product(tl.trans(keys), u, WIDEN)
    tl.store(places, tile, inside)
