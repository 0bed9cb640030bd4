"""Requests whose prompts have been fed, as the program takes them that lets them decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.arrays import to_device
from specjax.decoding.grammar import GrammarRows
from specjax.decoding.seats import Newcomers
from specjax.decoding.settings import DraftConfig, RowSettings, Settings
from specjax.runtime.request import Job

IDLE = Settings(draft=DraftConfig(n_max=0), scored=False)
"""The settings of a row that has no request."""


def newcomers(
    complete: Mapping[int, tuple[int, Job]],
    width: int,
    seats: int,
    arrays_of: Callable[[Sequence[Settings]], RowSettings],
    grammars: GrammarRows | None,
    counted: int | None = None,
) -> Newcomers:
    """What `start_rows` needs.

    Args:
        complete: the seat and the job of each column that has one.
        width: columns.
        seats: of the engine.
        arrays_of: makes arrays of settings.
        grammars: of the columns.
        counted: V where the state counts tokens.
    """
    numbers = np.full((4, width), 0, np.int32)
    numbers[0] = seats
    settings = [IDLE] * width
    for column, (row, job) in complete.items():
        request = job.request
        before = 0 if request.start is None else request.start.dropped
        numbers[:, column] = row, request.sequence, min(job.limit, job.room) - 1, before
        settings[column] = request.settings
    rows, sequence, budget, dropped = to_device(tuple(numbers))
    return Newcomers(rows, arrays_of(settings), sequence, budget, dropped, grammars, _counts(complete, width, counted))


def _counts(complete: Mapping[int, tuple[int, Job]], width: int, vocab_size: int | None) -> jax.Array | None:
    """How often each text has each token before its first one is chosen."""
    if vocab_size is None:
        return None
    counts = np.zeros((width, vocab_size), np.int32)
    for column, (_, job) in complete.items():
        np.add.at(counts[column], list(job.request.begun), 1)
    return jnp.asarray(counts)
