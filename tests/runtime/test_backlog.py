"""What waits for a drafter: everything is given once, in order, and nothing of texts that have left their rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax.decoding.unseen import BLOCKS, Unseen
from specjax.models.protocol import Features, Params
from specjax.runtime.backlog import Backlog
from specjax.state import SequenceState

ROWS, SLOTS, MOST = 3, 512, 40
NOTHING = -1


@dataclass(frozen=True)
class Scribe(specjax.BaseDrafter):
    """Its state is what it was given: the token and its feature, at their position."""

    def extend(
        self, params: Params, tokens: Array, features: Features, n_valid: Array, state: Any, length: Array
    ) -> Any:
        column = jnp.arange(tokens.shape[1])
        position = jnp.where(column < n_valid[:, None], length[:, None] + column, SLOTS)
        rows = jnp.arange(ROWS)[:, None]
        said, heard = state
        return said.at[rows, position].set(tokens), heard.at[rows, position].set(features.final_hidden[..., 0])


class Rounds:
    """Chunks whose tokens are drawn at random; rows may be done before their chunk is.

    Attributes:
        length: of each row's text.
        owed: by row, the tokens at the positions that the drafter has not been given.
    """

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.length = np.array([5, 0, 17])
        self.owed: list[dict[int, int]] = [{} for _ in range(ROWS)]

    def chunk(self, rounds: int) -> Unseen:
        """What is not seen of so many rounds. Behind the last one stands what must not be read."""
        ran = self.rng.integers(0, rounds + 1, ROWS)
        ran[self.rng.integers(ROWS)] = rounds
        tokens = self.rng.integers(0, 100, (MOST, ROWS)).astype(np.int32)
        n_fed = (np.arange(MOST)[:, None] < ran).astype(np.int32)
        hidden = np.where(np.arange(MOST)[:, None] < rounds, tokens / 2, np.nan)[:, :, None, None]
        before = self.length.copy()
        for row in range(ROWS):
            self.owed[row] |= {int(before[row]) + i: int(tokens[i, row]) for i in range(ran[row])}
        self.length = before + ran
        features = Features(jnp.asarray(hidden, jnp.float32), ())
        return Unseen(jnp.int32(rounds), jnp.asarray(before), jnp.asarray(tokens), jnp.asarray(n_fed), features)

    def replace(self, row: int) -> None:
        """Another text has the row."""
        self.length[row], self.owed[row] = self.rng.integers(30), {}


def blank() -> SequenceState:
    said = jnp.full((ROWS, SLOTS), NOTHING)
    return SequenceState((), (said, jnp.zeros((ROWS, SLOTS))), jnp.zeros(ROWS, jnp.int32))


def test_all_that_waits_is_given_and_nothing_that_was_forgotten() -> None:
    rounds, backlog, blocks = Rounds(), Backlog(ROWS, SLOTS), set()
    for _ in range(12):
        for size in rounds.rng.integers(1, MOST + 1, 4):
            backlog.add(rounds.chunk(int(size)), int(size), range(ROWS))
            if rounds.rng.random() < 0.5:
                row = int(rounds.rng.integers(ROWS))
                rounds.replace(row)
                backlog.forget(row)
        blocks |= {min(size for size in (*BLOCKS, SLOTS) if size >= len(owed)) for owed in rounds.owed}
        said, heard = backlog.given(Scribe(), {}, blank()).drafter
        for row, owed in enumerate(rounds.owed):
            given = {i: int(token) for i, token in enumerate(said[row]) if token != NOTHING}
            assert given == owed
            assert [float(heard[row, i]) for i in owed] == [token / 2 for token in owed.values()]
        assert not backlog
        rounds.owed = [{} for _ in range(ROWS)]
    assert blocks >= set(BLOCKS), "blocks of all sizes were needed"


def test_a_backlog_says_when_it_is_full() -> None:
    rounds, backlog = Rounds(), Backlog(ROWS, slots=100)
    assert backlog.has_room(MOST), "nothing waits yet"
    for _ in range(3):
        backlog.add(rounds.chunk(MOST), MOST, range(ROWS))
    assert backlog.has_room(8)
    assert not backlog.has_room(9), "the buffer has 128 columns, and is written in blocks of 8"
    for row in range(ROWS):
        backlog.forget(row)
    assert not backlog
    assert backlog.has_room(MOST)


def test_only_rounds_that_were_run_fill_it() -> None:
    """A chunk may end early. How many rounds it has had is known later, when others may have been added."""
    rounds, backlog = Rounds(), Backlog(ROWS, slots=100)
    for _ in range(18):
        first = backlog.add(rounds.chunk(2), 10, range(ROWS))
        second = backlog.add(rounds.chunk(3), 10, range(ROWS))
        assert backlog.has_room(10)
        backlog.ran(first, 2)
        backlog.ran(second, 3)
    assert not backlog.has_room(MOST)
    said, _ = backlog.given(Scribe(), {}, blank()).drafter
    assert [{i: int(token) for i, token in enumerate(row) if token != NOTHING} for row in said] == rounds.owed


def test_a_chunk_that_is_read_after_its_text_has_left_says_nothing_of_the_next_one() -> None:
    rounds, backlog = Rounds(), Backlog(ROWS, slots=100)
    early = [backlog.add(rounds.chunk(1), MOST, [0]) for _ in range(2)]
    backlog.forget(0)
    rounds.replace(0)
    backlog.add(rounds.chunk(MOST), MOST, [0])
    backlog.ran(early[0], 1)
    for _ in range(2):
        assert backlog.has_room(MOST)
        backlog.add(rounds.chunk(MOST), MOST, [0])
    backlog.ran(early[1], 1)
    assert not backlog.has_room(MOST)


def test_rows_in_which_nobody_decodes_do_not_fill_it() -> None:
    """But a text that has ended keeps what waits of it: chunks that go on write behind it, and need room there."""
    rounds, backlog = Rounds(), Backlog(ROWS, slots=100)
    backlog.add(rounds.chunk(MOST), MOST, [1])
    for _ in range(10):
        assert backlog.has_room(2 * MOST)
        assert not backlog.has_room(2 * MOST + 9), "row 1 has ended, and its tokens must not be overwritten"
        backlog.add(rounds.chunk(MOST), MOST, [0])
        backlog.forget(0)
        rounds.replace(0)
    backlog.forget(1)
    assert not backlog
    assert backlog.has_room(128)
