"""Draft lengths and the skip streak, as a state machine."""

import jax.numpy as jnp
import numpy as np
import pytest
from wants import alike, lengths_of

from specjax.decoding.draft_control import update_streak
from specjax.decoding.settings import DraftConfig

AMPLE = jnp.full(4, 100)
AWAKE = jnp.zeros(4, bool)
CONFIDENCE = jnp.array([[0.9, 0.8, 0.7], [0.9, 0.4, 0.9], [0.3, 0.9, 0.9], [0.9, 0.9, 0.2]])


def test_drafting_stops_before_the_first_doubtful_token():
    n = lengths_of(CONFIDENCE, DraftConfig(n_max=3, p_min=0.5), AMPLE, AWAKE)
    np.testing.assert_array_equal(n, [3, 1, 0, 2])
    np.testing.assert_array_equal(lengths_of(CONFIDENCE, DraftConfig(n_max=2, p_min=0.5), AMPLE, AWAKE), [2, 1, 0, 2])


def test_without_a_threshold_confidence_is_not_read():
    nan = jnp.full((4, 3), jnp.nan)
    np.testing.assert_array_equal(lengths_of(nan, DraftConfig(n_max=2), AMPLE, AWAKE), [2, 2, 2, 2])
    np.testing.assert_array_equal(lengths_of(nan, DraftConfig(n_max=8), AMPLE, AWAKE), [3, 3, 3, 3])
    np.testing.assert_array_equal(lengths_of(nan[:, :0], DraftConfig(n_max=8, p_min=0.5), AMPLE, AWAKE), [0] * 4)


def test_short_drafts_are_dropped():
    config = DraftConfig(n_max=3, n_min=2, p_min=0.5)
    np.testing.assert_array_equal(lengths_of(CONFIDENCE, config, AMPLE, AWAKE), [3, 0, 0, 2])


def test_a_round_never_emits_more_than_the_budget():
    budget = jnp.array([0, 1, 2, 3])
    np.testing.assert_array_equal(lengths_of(CONFIDENCE, DraftConfig(n_max=3), budget, AWAKE), [0, 0, 1, 2])
    short = lengths_of(CONFIDENCE, DraftConfig(n_max=3, n_min=2), budget, AWAKE)
    np.testing.assert_array_equal(short, [0, 0, 0, 2])


def test_skipping_rows_do_not_draft():
    skipping = jnp.array([True, False, True, False])
    np.testing.assert_array_equal(lengths_of(CONFIDENCE, DraftConfig(n_max=3), AMPLE, skipping), [0, 3, 0, 3])


def play(config, accepted):
    """Run rounds of one row, where `accepted` lists what each drafting round accepts; return which rounds drafted."""
    streak, skipping, drafted = jnp.zeros(1, jnp.int32), jnp.zeros(1, bool), []
    accepted = iter(accepted)
    for hit in accepted:
        while True:
            n_drafted = lengths_of(jnp.ones((1, 2)), config, jnp.array([9]), skipping)
            drafted.append(int(n_drafted[0] > 0))
            n_accepted = jnp.array([hit]) if drafted[-1] else jnp.array([0])
            streak, skipping = update_streak(streak, n_drafted, n_accepted, alike(1, draft=config))
            if drafted[-1]:
                break
    return drafted


def test_a_threshold_of_one_alternates_and_never_skips_for_ever():
    assert play(DraftConfig(n_max=2, skip_streak=1), [0, 0, 0, 0]) == [1, 0, 1, 0, 1, 0, 1]


def test_failures_in_a_row_skip_one_round_and_count_anew():
    assert play(DraftConfig(n_max=2, skip_streak=2), [0, 0, 0, 0, 0]) == [1, 1, 0, 1, 1, 0, 1]


def test_an_accepted_draft_ends_the_streak():
    assert play(DraftConfig(n_max=2, skip_streak=2), [0, 1, 0, 2, 0, 0, 1]) == [1, 1, 1, 1, 1, 1, 0, 1]


def test_without_a_threshold_drafting_never_pauses():
    assert play(DraftConfig(n_max=2), [0] * 8) == [1] * 8


def test_rounds_without_drafts_neither_count_nor_clear():
    config = DraftConfig(skip_streak=3)
    streak, skip = update_streak(
        jnp.array([2, 2, 2]), jnp.array([0, 3, 3]), jnp.array([0, 0, 1]), alike(3, draft=config)
    )
    np.testing.assert_array_equal(streak, [2, 0, 0])
    np.testing.assert_array_equal(skip, [False, True, False])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_max": -1}, "n_max is -1"),
        ({"n_max": 2.0}, "n_max is 2.0"),
        ({"n_max": 2, "n_min": 3}, "n_min is 3 but n_max is 2"),
        ({"p_min": 1.5}, "p_min is 1.5"),
        ({"p_min": float("nan")}, "p_min is nan"),
        ({"skip_streak": -1}, "skip_streak is -1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        DraftConfig(**settings)


def test_settings_that_would_bias_rejection_sampling_are_refused():
    with pytest.raises(ValueError, match="bias rejection sampling"):
        DraftConfig(n_min=2, p_min=0.5).check_lossless(drawn=True)
    DraftConfig(n_min=2, p_min=0.5).check_lossless(drawn=False)
    DraftConfig(n_min=1, p_min=0.5).check_lossless(drawn=True)
    DraftConfig(n_min=3).check_lossless(drawn=True)
