"""How many rounds make a chunk."""

import pytest

from specjax.runtime.pace import DEFAULT_ROUNDS, USUAL, Pace


def paced(round_seconds: float, most: int = 32) -> Pace:
    """The pace after a chunk of 8 rounds that took so long each."""
    pace = Pace(most)
    pace.took(8 * round_seconds, 8, 0)
    return pace


def test_before_anything_was_measured_a_chunk_has_the_usual_rounds() -> None:
    assert Pace(32).rounds(0) == 8
    assert Pace(3).rounds(0) == 3


@pytest.mark.parametrize(
    ("round_seconds", "rounds"), [(1e-9, 32), (0.0019, 15), (0.009, 3), (0.025, 1), (0.26, 1), (30.0, 1)]
)
def test_chunks_last_about_equally_long_and_slow_rounds_are_shown_one_by_one(round_seconds: float, rounds: int) -> None:
    assert paced(round_seconds).rounds(0) == rounds


def test_no_chunk_is_longer_than_was_asked_for() -> None:
    assert paced(0.00039, most=5).rounds(0) == 5
    assert paced(0.00039, most=1).rounds(0) == 1


def test_each_depth_has_its_own_pace() -> None:
    pace = paced(0.0019)
    assert pace.rounds(3) == 15, "as another depth, while nothing else is known"
    pace.took(100 * 0.0049, 100, 3)
    assert pace.rounds(3) == 6
    assert pace.rounds(0) == 15


def test_what_has_been_measured_says_how_long_a_chunk_will_take() -> None:
    pace = paced(0.0019)
    assert pace.expected(10, 0) == pytest.approx(0.019)
    assert pace.expected(10, 3) == 0.0, "this depth has not been measured"


def test_a_steady_pace_does_not_depend_on_the_clock() -> None:
    """Several processes see different times, and must start equal chunks."""
    pace = Pace(DEFAULT_ROUNDS, steady=True)
    for seconds in (1.0, 0.001, 49.0):
        pace.took(seconds, 4, 3)
        assert pace.rounds(3) == USUAL
    assert Pace(2, steady=True).rounds(0) == 2


def test_a_chunk_that_nobody_waits_for_is_longer() -> None:
    pace = paced(0.009)
    waits, does_not = (pace.lasts(0, awaited=awaited, found=False) for awaited in (True, False))
    assert (pace.rounds(0, waits), pace.rounds(0, does_not)) == (3, 22)
    assert paced(0.0019).rounds(0, does_not) == 32, "no longer than was asked for"


def test_chunks_grow_while_the_number_of_drafts_that_was_found_stays() -> None:
    pace, seen = paced(0.009), []
    for depth in (3, 3, 3, *[3] * 20, 1, 1):
        seen.append(pace.rounds(depth, pace.lasts(depth, awaited=False, found=True)))
    assert seen[:3] == [3, 4, 5]
    assert seen[22] == 11
    assert seen[23:] == [3, 4], "another number begins anew"
    assert pace.lasts(1, awaited=True, found=True) == pytest.approx(0.03)
