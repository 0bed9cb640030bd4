"""Calls of every operation as a layer of Qwen3.6-27B makes them, or smaller ones."""

from __future__ import annotations

from collections.abc import Iterator

import jax

from pallas_kernels import native
from pallas_kernels.cases import CASES, Case
from pallas_kernels.recording import Call

DELTAS = {"Hk": 16, "Hv": 48, "Dk": 128, "Dv": 128}
HEADS = {"H": 24, "G": 4, "N": 256}
MATRICES = ((10240, 5120), (6144, 5120), (12288, 5120), (5120, 6144), (5120, 10240), (1024, 5120), (48, 5120))
"""N and K of the matrices beside those of the MLP; HEAD is that of the output."""
HEAD = (248320, 5120)


def cases(*, small: bool) -> list[Case]:
    """All operations, with a layer's sizes of Qwen3.6-27B or with smaller ones."""
    return [CASES[operation](dims) for operation, dims in calls(small=small)]


def calls(*, small: bool) -> Iterator[Call]:
    """The same as names and sizes."""
    for batch in (2,) if small else (1, 8):
        rounds = {"B": batch, "T": 4, **DELTAS}
        yield "gated_delta.verify", rounds
        yield "gated_delta.commit", rounds
        yield "gated_delta.verify_snapshots", {**rounds, "M": 4}
    for batch, tokens in ((1, 128),) if small else ((1, 1), (8, 1), (1, 2048)):
        yield "gated_delta.prefill", {"B": batch, "T": tokens, **DELTAS}
    for batch, tokens in ((4, 4), (1, 256)) if small else ((1, 4), (8, 4), (1, 2048)):
        yield "causal_conv1d", {"B": batch, "T": tokens, "C": 10240, "W": 4}
    yield "hadamard", {"rows": 8192 if small else 65536, "N": 256}
    yield "rms_norm", {"rows": 512, "D": 1024} if small else {"rows": 2048, "D": 5120}
    yield "softmax_totals", {"rows": 4, "V": 8192} if small else {"rows": 16, "V": 248320}
    yield from _products(small=small)
    for kind in ("f32" if small else "bf16", "q8_0"):
        for slots in (2048,) if small else (256, 4096, 32768):
            yield "cache_attention", _attention(kind, 4, slots)
    rows, slots = (64, 1024) if small else (512, 32768)
    yield "cache_attention", _attention("f32" if small else "bf16", rows, slots)
    if not small:
        yield "cache_attention", _attention("bf16", 1, 32768)
        yield "cache_attention", _attention("bf16", 4, 8192) | {"B": 4}
        for kind in ("bf16", "q8_0"):
            yield "cache_attention", _attention(kind, 256, 4096)


def _products(*, small: bool) -> Iterator[Call]:
    width, hidden = (1024, 4096) if small else (5120, 17408)
    for rows in (4, 64) if small else (4, 256, 1024):
        for n, k in ((hidden, width), (width, hidden)):
            for name in ("Q8_0", "Q4_K"):
                yield "matmul.packed", {"M": rows, "N": n, "K": k, "format": name, "layout": layout()}
            yield "matmul.float", {"M": rows, "N": n, "K": k, "dtype": "float32" if small else "bfloat16"}
        if not small:
            for n, k in (*MATRICES, *([HEAD] if rows == 4 else [])):
                yield "matmul.packed", {"M": rows, "N": n, "K": k, "format": "Q4_K", "layout": layout()}
            if rows == 4:
                yield from _few_rows()
        experts = {"E": 16, "F": 512, "D": 256} if small else {"E": 64, "F": 1024, "D": 2048}
        yield "matmul.experts", {"M": rows, "k": 2, **experts}


def _few_rows() -> Iterator[Call]:
    """Products of a round that a dense model in Q4_K does not make."""
    yield "matmul.packed", {"M": 4, "N": 5120, "K": 17408, "format": "Q6_K", "layout": layout()}
    yield "matmul.packed", {"M": 1, "N": 1024, "K": 2048, "format": "Q4_K", "layout": layout(), "B": 8, "E": 32}


def layout() -> str:
    """The layout that packed matrices have on this device."""
    if jax.default_backend() == "cpu":
        return "panels16" if native.available() else "blocks"
    return "planes"


def _attention(kind: str, rows: int, slots: int) -> dict[str, object]:
    options = {"window": None, "soft_cap": None, "sinks": False}
    return {"B": 1, "T": rows, **HEADS, "S": slots, "k_type": kind, "v_type": kind, **options}
