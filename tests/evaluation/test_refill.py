"""A batch whose rows are refilled says what does not fit it before anything runs."""

from __future__ import annotations

import pytest
from tiny_models import DENSE, make_params

from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import DraftConfig, Settings
from specjax.evaluation.refill import Job, RefilledBatch, capacity_for
from specjax.models.qwen3_5 import Qwen35Target

DECODER = Decoder(Qwen35Target(DENSE), None, max_drafts=0)
PLAIN = Settings(draft=DraftConfig(n_max=0))


def batch(capacity: int) -> RefilledBatch:
    return RefilledBatch(DECODER, make_params(DENSE), rows=2, capacity=capacity, settings=PLAIN, rounds_per_chunk=4)


def test_a_capacity_that_is_too_small_is_refused_with_both_numbers() -> None:
    jobs = [Job(0, [1, 2], 4), Job(1, [1] * 250, 20), Job(2, [3], 300)]
    with pytest.raises(ValueError, match=r"job 2 needs 301 slots of the caches, 1 for its prompt .* capacity of 300"):
        next(batch(300).run(jobs))
    assert capacity_for(jobs, DECODER) == 512


def test_a_capacity_that_is_just_enough_is_used_to_its_end() -> None:
    finished = list(batch(9).run([Job(0, [1, 2, 3, 4, 5], 4), Job(1, [1, 2], 3), Job(2, [7], 5)]))
    assert sorted((seat.job.sequence, len(seat.tokens)) for seat in finished) == [(0, 4), (1, 3), (2, 5)]


def test_the_context_of_the_model_limits_what_a_job_needs() -> None:
    assert capacity_for([Job(0, [1] * 500, 10**6)], DECODER) == DENSE.context_length
