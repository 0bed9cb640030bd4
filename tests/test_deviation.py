"""How two states that should be equal are compared: places, heads, sizes, and what is left out."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from specjax.analysis.diverge.deviation import Deviation, deviations, errors, largest_errors
from specjax.state import Content

LIMITS = defaultdict(lambda: 1e-3)
KEYS = np.random.default_rng(0).normal(size=(6, 4, 8)).astype(np.float32)


def cache(rows: np.ndarray, *, start: int = 10, layer: int = 2) -> Content:
    positions = np.arange(start, start + len(rows))
    return Content(("keys",), positions, rows, positions % 8, has_heads=True).under(f"layer {layer}")


def found(got: np.ndarray, want: np.ndarray = KEYS) -> Deviation:
    (only,) = deviations([cache(got)], [cache(want)], LIMITS)
    return only


def changed(*index: object) -> np.ndarray:
    rows = KEYS.copy()
    rows[index] += 1
    return rows


def test_equal_states_and_rounding_are_no_deviation() -> None:
    assert deviations([cache(KEYS)], [cache(KEYS * (1 + 1e-6))], LIMITS) == []


def test_a_slot_and_its_heads_are_named() -> None:
    one = found(changed(3, 1))
    assert (one.name, one.positions, one.slot) == ("layer 2 keys", (13,), 5)
    assert (one.heads, one.num_heads) == ((1,), 4)
    assert one.where == "at position 13, slot 5, in head 1 of 4"
    assert one.error == pytest.approx(0.5, rel=0.2)  # 1 in a quarter of the row, over values of size 1


def test_what_goes_on_to_the_end_is_said_so() -> None:
    assert found(changed(slice(2, None))).where == "from position 12 on (4 positions), slot 4, in all heads"
    assert found(changed([0, 2])).where == "at positions 10, 12 (2 in all), slot 2, in all heads"


def test_only_positions_that_both_have_are_compared() -> None:
    wrong = changed(0)
    assert deviations([cache(wrong)], [cache(KEYS[1:], start=11)], LIMITS) == []
    other = Content(("waiting tokens",), np.array([3]), np.array([7]))
    assert deviations([other], [cache(KEYS)], LIMITS) == []


def test_layers_keep_their_order_and_sums_come_first() -> None:
    total = Content(("layer 1", "recurrent state"), np.array([15]), np.ones((1, 2)))
    window = Content(("layer 1", "inputs of the convolution"), np.array([13, 14, 15]), np.ones((3, 2)))
    got = [cache(changed(0), layer=0), window, total]
    want = [cache(KEYS, layer=0), window._replace(rows=np.zeros((3, 2))), total._replace(rows=np.zeros((1, 2)))]
    names = [each.name for each in deviations(got, want, LIMITS)]
    assert names == ["layer 0 keys", "layer 1 recurrent state", "layer 1 inputs of the convolution"]


def test_tokens_are_right_or_wrong_and_what_is_no_number_is_wrong() -> None:
    np.testing.assert_array_equal(errors(np.array([3, 5]), np.array([3, 4])), [0, 1])
    assert errors(np.array([[np.nan, 1]]), np.array([[1.0, 1]])) == [np.inf]
    tokens = Content(("tokens",), np.array([0, 1]), np.array([3, 5]))
    assert largest_errors([tokens], [tokens]) == {("tokens",): 0.0}
    assert largest_errors([tokens], [tokens._replace(positions=np.array([7, 8]))]) == {("tokens",): 0.0}
