"""How many rounds make a chunk."""

import pytest

from specjax.runtime.pace import DEFAULT_ROUNDS, USUAL, Pace


def paced(round_seconds: float, most: int = 32) -> Pace:
    """The pace after a chunk of 8 rounds that took so long each; the clock did not start at 0."""
    pace = Pace(most)
    pace.looked(100.0)
    pace.looked(100.0 + 8 * round_seconds, 8)
    return pace


def test_before_anything_was_measured_a_chunk_has_the_usual_rounds() -> None:
    assert Pace(32).rounds(0, others_wait=False) == 8
    assert Pace(3).rounds(0, others_wait=False) == 3


@pytest.mark.parametrize(
    ("round_seconds", "rounds"),
    [(1e-9, 32), (0.00039, 25), (0.00126, 8), (0.03, 8), (0.06, 4), (0.2, 1), (0.26, 1), (30.0, 1)],
)
def test_fast_rounds_make_long_chunks_and_slow_ones_show_every_token(round_seconds: float, rounds: int) -> None:
    assert paced(round_seconds).rounds(0, others_wait=False) == rounds


def test_nobody_waits_for_a_seat_longer_than_usual() -> None:
    assert paced(0.00039).rounds(0, others_wait=True) == 8
    assert paced(0.06).rounds(0, others_wait=True) == 4


def test_no_chunk_is_longer_than_was_asked_for() -> None:
    assert paced(0.00039, most=5).rounds(0, others_wait=False) == 5
    assert paced(0.00039, most=1).rounds(0, others_wait=True) == 1


def test_a_pause_between_two_generations_is_not_taken_for_a_slow_round() -> None:
    pace = paced(0.00039)
    pace.looked(500.0)  # the first tokens of the next one
    pace.looked(500.0 + 25 * 0.00039, 25)
    assert pace.rounds(0, others_wait=False) == 25


def test_each_depth_has_its_own_pace() -> None:
    pace = paced(0.00039)
    assert pace.rounds(3, others_wait=False) == 25, "as another depth, while nothing else is known"
    pace.looked(100.1 + 8 * 0.00039, 100, depth=3)
    assert pace.rounds(3, others_wait=False) == 10
    assert pace.rounds(0, others_wait=False) == 25


def test_a_steady_pace_does_not_depend_on_the_clock() -> None:
    """Several processes see different times, and must start equal chunks."""
    pace = Pace(DEFAULT_ROUNDS, steady=True)
    for now in (1.0, 1.001, 50.0):
        pace.looked(now, 4)
        assert pace.rounds(3, others_wait=False) == USUAL
    assert Pace(2, steady=True).rounds(0, others_wait=True) == 2
