"""Attention over some slots of a cache, in Triton; called by triton_splits.py and triton_prefill.py, which say more."""

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError("these kernels need Triton: pip install 'specjax[gpu-triton]'") from error

from pallas_kernels.triton_rounding import rounded


@triton.jit
def _codes(codes, at, i, inside, FORMAT: tl.constexpr, GROUP: tl.constexpr):
    """Codes i [GROUP] of groups whose bytes begin at these places [slots, groups], as integers."""
    at, inside = at[:, :, None], inside[:, :, None]
    if FORMAT == "q8_0":
        found = tl.load(codes + at + i, inside, 0)
    elif FORMAT == "q4_0" or FORMAT == "turbo4":
        found = tl.load(codes + at + i % (GROUP // 2), inside, 0).to(tl.int32) >> i // (GROUP // 2) * 4 & 15
    else:
        found = tl.load(codes + at + i % (GROUP // 4), inside, 0).to(tl.int32) >> i // (GROUP // 4) * 2 & 3
        if FORMAT == "turbo3":
            high = tl.load(codes + at + GROUP // 4 + i // 8, inside, 0).to(tl.int32)
            found |= (high >> i % 8 & 1) << 2
    return found


@triton.jit
def _decoded(
    codes, scales, table, vector, used, FIRST: tl.constexpr, COUNT: tl.constexpr,
    FORMAT: tl.constexpr, BYTES: tl.constexpr, SCALES: tl.constexpr, GROUP: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """COUNT entries from FIRST on of the vectors with these numbers [slots], float32; zeros for those not used.

    BYTES and SCALES are the codes and the scales of a vector, GROUP the values that share a scale.
    """
    if SCALES == 0:
        n = FIRST + tl.arange(0, COUNT)
        values = tl.load(codes + (vector * BYTES)[:, None] + n[None, :], used[:, None] & (n < STORED)[None, :], 0)
        if FORMAT == "bf16":
            values = values.to(tl.bfloat16, bitcast=True)
        values = values.to(tl.float32)
    else:
        group = FIRST // GROUP + tl.arange(0, COUNT // GROUP)
        inside = used[:, None] & (group < SCALES)[None, :]
        at = (vector * BYTES)[:, None] + (group * (BYTES // SCALES))[None, :]
        i = tl.arange(0, GROUP)[None, None, :]
        found = _codes(codes, at, i, inside, FORMAT, GROUP)
        if FORMAT == "q8_0":
            values = found.to(tl.float32)
        elif FORMAT == "q4_0":
            values = ((found ^ 8) - 8).to(tl.float32)
        else:
            values = tl.load(table + found)
        scale = tl.load(scales + (vector * SCALES)[:, None] + group[None, :], inside, 0).to(tl.float32)
        values = (values * scale[:, :, None]).reshape(vector.shape[0], COUNT)
    return values


@triton.jit
def _tanh(x):
    """To six digits; near zero, where the difference of exponentials would lose them, by its series."""
    square = x * x
    near = x * (1 - square * (1 / 3 - square * (2 / 15)))
    return tl.where(square < 0.005, near, 1 - 2 / (1 + tl.exp(2 * x)))


@triton.jit
def _add_product(
    sums, left_high, left_low, right, EXACT: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """sums + left @ right but for the product of low parts, if there are such; EXACT: right has none."""
    right_high = rounded(right, WIDEN)
    if PARTS == 2:
        sums = tl.dot(left_low, right_high, sums)
        if not EXACT:
            sums = tl.dot(left_high, rounded(right - right_high.to(tl.float32), WIDEN), sums)
    return tl.dot(left_high, right_high, sums)


@triton.jit
def partial_attention(
    q, own, reach, k_codes, k_scales, k_table, v_codes, v_scales, v_table, highest, total, sums,
    T: tl.constexpr, HEADS: tl.constexpr, G: tl.constexpr, S: tl.constexpr, WINDOW: tl.constexpr,
    SCALE: tl.constexpr, SOFT_CAP: tl.constexpr,
    K_FORMAT: tl.constexpr, K_BYTES: tl.constexpr, K_SCALES: tl.constexpr, K_GROUP: tl.constexpr,
    K_STORED: tl.constexpr, K_PADDED: tl.constexpr, K_EXACT: tl.constexpr, K_PARTS: tl.constexpr,
    V_FORMAT: tl.constexpr, V_BYTES: tl.constexpr, V_SCALES: tl.constexpr, V_GROUP: tl.constexpr,
    V_STORED: tl.constexpr, V_PADDED: tl.constexpr, V_EXACT: tl.constexpr, V_PARTS: tl.constexpr,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, DEPTH: tl.constexpr, SPLITS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """What every SPLITS-th tile of SLOTS slots gives to some rows of a sequence that share a KV head.

    q [K_PARTS, B, G, T * HEADS, K_PADDED] bfloat16: high and low parts of queries, rotated, or the high ones alone.
    Keys are split likewise, weights and values into V_PARTS. HEADS queries share a KV head. own and reach [B, T] as
    `spans` has them. Results: the highest score and the total of weights [B, G, T * HEADS, SPLITS], the weighted sums
    [..., SPLITS, V_STORED]. SOFT_CAP is 0 for none. WIDEN is for the interpreter, whose products know no bfloat16.
    """
    batch, head = (tl.program_id(0) // G).to(tl.int64), tl.program_id(0) % G
    split = tl.program_id(2)
    count: tl.constexpr = T * HEADS
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    in_rows = row < count
    own_slot = tl.load(own + batch * T + row // HEADS, in_rows, 0)
    how_many = tl.load(reach + batch * T + row // HEADS, in_rows, 0)
    place = (batch * G + head) * count + row
    low_parts = (tl.num_programs(0) // G).to(tl.int64) * G * count * K_PADDED
    depth, n = tl.arange(0, DEPTH), tl.arange(0, V_PADDED)
    most = tl.full((ROWS,), float("-inf"), tl.float32)
    whole = tl.zeros((ROWS,), tl.float32)
    mean = tl.zeros((ROWS, V_PADDED), tl.float32)
    end = S if WINDOW else tl.max(how_many, 0)
    for tile in range(split, tl.cdiv(end, SLOTS), SPLITS):
        slot = tile * SLOTS + tl.arange(0, SLOTS)
        behind = own_slot[:, None] - slot[None, :]
        seen = tl.where(behind < 0, behind + S, behind) < how_many[:, None]
        seen = seen & (slot < S)[None, :]
        used = tl.max(seen.to(tl.int32), 0) > 0
        if tl.max(used.to(tl.int32), 0) > 0:
            first = (batch * S + tile * SLOTS) * G + head
            vector = tl.arange(0, SLOTS) * G
            scores = tl.zeros((ROWS, SLOTS), tl.float32)
            for start in tl.static_range(0, K_PADDED, DEPTH):
                keys = _decoded(
                    k_codes + first * K_BYTES, k_scales + first * K_SCALES, k_table, vector, used, start, DEPTH,
                    K_FORMAT, K_BYTES, K_SCALES, K_GROUP, K_STORED,
                )  # fmt: skip
                at = q + place[:, None] * K_PADDED + (start + depth)[None, :]
                high = tl.load(at, in_rows[:, None], 0)
                low = tl.load(at + low_parts, in_rows[:, None], 0) if K_PARTS == 2 else high
                if WIDEN:
                    high, low = high.to(tl.float32), low.to(tl.float32)
                scores = _add_product(scores, high, low, tl.trans(keys), K_EXACT, K_PARTS, WIDEN)
            scores *= SCALE
            if SOFT_CAP > 0:
                scores = SOFT_CAP * _tanh(scores / SOFT_CAP)
            scores = tl.where(seen, scores, float("-inf"))
            now = tl.maximum(most, tl.max(scores, 1))
            base = tl.where(now == float("-inf"), 0.0, now)
            weights, fade = tl.exp(scores - base[:, None]), tl.exp(most - base)
            whole = whole * fade + tl.sum(weights, 1)
            values = _decoded(
                v_codes + first * V_BYTES, v_scales + first * V_SCALES, v_table, vector, used, 0, V_PADDED,
                V_FORMAT, V_BYTES, V_SCALES, V_GROUP, V_STORED,
            )  # fmt: skip
            high = rounded(weights, WIDEN)
            low = rounded(weights - high.to(tl.float32), WIDEN)
            mean = _add_product(mean * fade[:, None], high, low, values, V_EXACT, V_PARTS, WIDEN)
            most = now
    part = place * SPLITS + split
    tl.store(highest + part, most, in_rows)
    tl.store(total + part, whole, in_rows)
    tl.store(sums + part[:, None] * V_STORED + n[None, :], mean, in_rows[:, None] & (n < V_STORED)[None, :])
