"""Calls to measure with: what runs here agrees with the law on random and on cruel input, at sizes of all kinds."""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
import pytest
from compiled import dequantize

from pallas_kernels import native
from pallas_kernels.cases import CASES, products, random_blocks, words
from pallas_kernels.matmul import FORMATS, from_blocks
from pallas_kernels.measuring.timing import Effort, Timing
from pallas_kernels.measuring.trials import candidates, prepared, timed
from pallas_kernels.table import TABLE

LAYOUT = "panels16" if native.available() else "blocks"
QUICK = Effort(copies=1, cache_bytes=1, seconds=0, runs=1)
HEADS = {"H": 4, "G": 2, "N": 32, "soft_cap": None}
DELTAS = {"T": 3, "Hk": 2, "Hv": 4, "Dk": 16, "Dv": 16, "M": 2}
CALLS = [
    ("cache_attention", {"B": 3, "T": 4, "S": 64, **HEADS, "k_type": "q8_0", "v_type": "bf16", "sinks": False}),
    ("cache_attention", {"T": 20, "S": 64, **HEADS, "k_type": "f32", "v_type": "f32", "sinks": True}),
    (
        "cache_attention",
        {"B": 2, "T": 2, "S": 40, **HEADS, "k_type": "f16", "v_type": "turbo4", "window": 30, "sinks": False},
    ),
    ("causal_conv1d", {"B": 2, "T": 4, "C": 64, "W": 4}),
    ("gated_delta.commit", {"B": 3, **DELTAS}),
    ("gated_delta.prefill", {"B": 3, **DELTAS, "T": 10}),
    ("gated_delta.verify", DELTAS),
    ("gated_delta.verify", {**DELTAS, "grouped": True}),
    ("gated_delta.verify_snapshots", {"B": 3, **DELTAS}),
    ("hadamard", {"rows": 8, "N": 64}),
    ("matmul.experts", {"M": 4, "k": 2, "E": 4, "F": 64, "D": 32}),
    ("matmul.float", {"M": 4, "N": 64, "K": 96, "dtype": "bfloat16"}),
    ("matmul.float", {"M": 1, "N": 64, "K": 96, "dtype": "float32", "B": 3, "E": 5}),
    ("matmul.packed", {"M": 1, "N": 48, "K": 64, "format": "Q8_0", "layout": LAYOUT}),
    ("matmul.packed", {"M": 4, "N": 64, "K": 256, "format": "Q4_K", "layout": LAYOUT, "B": 3, "E": 5}),
    ("matmul.packed", {"M": 3, "N": 64, "K": 256, "format": "TQ3_1S", "layout": "blocks"}),
    ("rms_norm", {"rows": 4, "D": 64}),
    ("softmax_totals", {"rows": 4, "V": 1000}),
]


def test_every_operation_has_a_case() -> None:
    assert CASES.keys() == TABLE.keys() == {operation for operation, _ in CALLS}


@pytest.mark.parametrize(
    ("operation", "dims"), CALLS, ids=lambda value: words(value) if isinstance(value, dict) else value
)
def test_what_runs_here_agrees_with_the_law(operation: str, dims: dict) -> None:
    case = CASES[operation](dims)
    ready: dict[str, Timing] = {}
    before = list(prepared(case, (), QUICK, ready))
    names = [each.name for each in candidates(case, "cpu")]
    assert [each.impl for each in before] == list(ready) == names, before
    assert not any(each.settled for each in before)
    every = list(timed(case, ready, QUICK))
    before, found = every[::2], every[1::2]
    assert [each.impl for each in found] == [each.impl for each in before] == names
    assert not any(each.settled for each in before)
    assert all(each.left_out is None and each.microseconds > 0 for each in found), found


@pytest.mark.parametrize("operation", TABLE)
def test_a_case_has_the_sizes_that_implementations_are_chosen_by(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a call that was recorded is measured as it was made."""
    from pallas_kernels.recording import recording

    _, dims = next(call for call in CALLS if call[0] == operation)
    case = CASES[operation](dims)
    given = jax.eval_shape(lambda: case.make(0))
    with recording() as calls:
        jax.eval_shape(partial(case.call, None), given)
    made = next(recorded for name, recorded in calls.made if name == operation)
    assert {axis: size for axis, size in made.items() if axis in dims} == {
        axis: size for axis, size in dims.items() if axis in made
    }
    assert made.keys() - dims.keys() <= {"B", "window"}
    again = CASES[operation](made)
    assert jax.eval_shape(lambda: again.make(0)) == given


def test_caches_are_timed_half_full_and_rings_full() -> None:
    dims = {"T": 4, "S": 64, **HEADS, "k_type": "q8_0", "v_type": "q8_0", "sinks": False}
    for window, last in ((None, 31), (30, None)):
        case = CASES["cache_attention"]({**dims, "window": window})
        given = case.make(0)
        positions, used = given.fixed[2], case.in_use(given).fixed[2]
        assert int(used[0, -1]) == (int(positions[0, -1]) if last is None else last)
        assert int(positions[0, -1]) >= 63


def test_a_quantized_cache_is_decoded_whole_if_that_takes_no_more_than_a_gibibyte() -> None:
    dims = {"T": 4, "S": 32768, "H": 24, "G": 4, "N": 256, "k_type": "q8_0", "v_type": "q8_0", "sinks": False}
    case = CASES["cache_attention"]
    names = [each.name for each in candidates(case(dims), "gpu")]
    assert names[0] == "xla_decoded"
    eight, nine = ([each.name for each in candidates(case({"B": batch, **dims}), "gpu")] for batch in (8, 9))
    assert eight == names
    assert nine[0] == "xla_tiles"
    assert "xla_decoded" not in nine


@pytest.mark.parametrize(
    ("operation", "dims"), [call for call in CALLS if call[0] in ("matmul.float", "matmul.packed")]
)
def test_the_law_of_a_product_is_the_reference_part_by_part(
    operation: str, dims: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = CASES[operation](dims)
    monkeypatch.setattr(products, "_VALUES_OF_THE_LAW", 20 * dims["K"])  # 20 rows: no number of rows is a multiple
    case = CASES[operation](dims)
    given = case.make(0)
    poisoned, finite = case.cruel(given)
    wanted = whole.judged(poisoned, whole.call("reference", finite))
    np.testing.assert_allclose(case.wanted(poisoned, finite), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["bfloat16", "Q6_K"])
def test_the_law_of_a_large_head_takes_little_memory(kind: str) -> None:
    """Decoded, such a head is five gigabytes."""
    operation, own = (
        ("matmul.packed", {"format": kind, "layout": "blocks"})
        if kind in FORMATS
        else ("matmul.float", {"dtype": kind})
    )
    case = CASES[operation]({"M": 4, "N": 8, "K": 5120, **own})
    given = jax.eval_shape(lambda: case.make(0))
    weight = jax.tree.map(lambda part: jax.ShapeDtypeStruct((248_320, *part.shape[1:]), part.dtype), given.fixed[0])
    part = jax.jit(partial(products.product_with_rows, case.call, 3276))
    compiled = part.lower(given._replace(fixed=(weight, None)), 0).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2**28


@pytest.mark.parametrize("name", FORMATS)
def test_random_blocks_are_numbers(name: str) -> None:
    blocks = random_blocks(np.random.default_rng(0), name, (4, 256))
    values = np.asarray(dequantize(from_blocks(jax.numpy.asarray(blocks), name)))
    assert np.isfinite(values).all()
    assert len(np.unique(values)) > 4
