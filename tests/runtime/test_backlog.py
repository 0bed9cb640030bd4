"""What waits for a drafter: everything is given once, in order, and nothing of texts that have left their rows."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import specjax
from specjax.decoding.decoder import Decoder
from specjax.decoding.unseen import BLOCKS, Waiting
from specjax.models.protocol import FeatureRequest, Features, Params
from specjax.runtime.backlog import Added, Backlog
from specjax.state import SequenceState

ROWS, SLOTS, MOST = 3, 512, 40
NOTHING = -1


@dataclass(frozen=True)
class Scribe(specjax.BaseDrafter):
    """Its state is what it was given: the token and its feature, at their position."""

    request = FeatureRequest(final_hidden=True)

    def extend(
        self, params: Params, tokens: Array, features: Features, n_valid: Array, state: Any, length: Array
    ) -> Any:
        column = jnp.arange(tokens.shape[1])
        position = jnp.where(column < n_valid[:, None], length[:, None] + column, SLOTS)
        rows = jnp.arange(ROWS)[:, None]
        said, heard = state
        return said.at[rows, position].set(tokens), heard.at[rows, position].set(features.final_hidden[..., 0])


@dataclass(frozen=True)
class Narrow:
    """What is asked of a target here."""

    width: int = 1


DECODER = Decoder(Narrow(), Scribe(), max_drafts=0)  # type: ignore[arg-type]


class Rounds:
    """Chunks whose tokens are drawn at random; rows may be done before their chunk is.

    Attributes:
        backlog: they wait there.
        length: of each row's text.
        owed: by row, the tokens at the positions that the drafter has not been given.
    """

    def __init__(self, slots: int = SLOTS) -> None:
        self.backlog = Backlog(ROWS, slots)
        self.rng = np.random.default_rng(0)
        self.length = np.array([5, 0, 17])
        self.owed: list[dict[int, int]] = [{} for _ in range(ROWS)]

    def chunk(self, rounds: int, rows: Collection[int] = range(ROWS), most: int | None = None) -> Added:
        """So many rounds, of at most so many. What a row does in rounds after its last must not be read."""
        waiting = leave(*self.backlog.taken(DECODER, {}, MOST))
        ran = self.rng.integers(0, rounds + 1, ROWS)
        ran[self.rng.integers(ROWS)] = rounds
        ran[[row for row in range(ROWS) if row not in rows]] = 0
        tokens = self.rng.integers(0, 100, (MOST, ROWS)).astype(np.int32)
        fed = (np.arange(MOST)[:, None] < ran) | (np.arange(MOST)[:, None] >= rounds)  # these must not be read either
        for index in range(rounds):
            hidden = np.where(fed[index], tokens[index] / 2, np.nan)[:, None, None]
            waiting = write(waiting, np.int32(index), Features(hidden.astype(jnp.bfloat16), ()))
            for row in np.flatnonzero(fed[index]):
                self.owed[row][int(self.length[row])] = int(tokens[index, row])
            self.length += fed[index]
        waiting = end(waiting, np.int32(rounds), tokens, fed)
        return self.backlog.put(waiting, rounds if most is None else most, rows)

    def replace(self, row: int) -> None:
        """Another text has the row."""
        self.backlog.forget(row)
        self.length[row], self.owed[row] = self.rng.integers(30), {}

    def given(self) -> tuple[np.ndarray, np.ndarray]:
        """What the drafter is given, at its positions."""
        said = jnp.full((ROWS, SLOTS), NOTHING)
        state = SequenceState((), (said, jnp.zeros((ROWS, SLOTS))), jnp.asarray(self.length, jnp.int32))
        said, heard = self.backlog.given(Scribe(), {}, state)[0].drafter
        return np.asarray(said), np.asarray(heard)


leave, write, end = jax.jit(Waiting.without), jax.jit(Waiting.with_round), jax.jit(Waiting.after)


def test_all_that_waits_is_given_and_nothing_that_was_forgotten() -> None:
    rounds, blocks = Rounds(), set()
    for _ in range(12):
        for size in rounds.rng.integers(1, MOST + 1, 4):
            rounds.chunk(int(size))
            if rounds.rng.random() < 0.5:
                rounds.replace(int(rounds.rng.integers(ROWS)))
        blocks |= {min(size for size in (*BLOCKS, SLOTS) if size >= len(owed)) for owed in rounds.owed}
        said, heard = rounds.given()
        for row, owed in enumerate(rounds.owed):
            given = {i: int(token) for i, token in enumerate(said[row]) if token != NOTHING}
            assert given == owed
            assert [float(heard[row, i]) for i in owed] == [token / 2 for token in owed.values()]
        assert not rounds.backlog
        rounds.owed = [{} for _ in range(ROWS)]
    assert blocks >= set(BLOCKS), "blocks of all sizes were needed"


def test_a_backlog_says_when_it_is_full() -> None:
    rounds = Rounds(slots=128 - 2 * MOST)
    backlog = rounds.backlog
    assert backlog.has_room(MOST), "nothing waits yet"
    for _ in range(3):
        rounds.chunk(MOST)
    assert backlog.has_room(8)
    assert not backlog.has_room(9), "the buffer has 128 columns"
    for row in range(ROWS):
        backlog.forget(row)
    assert not backlog
    assert backlog.has_room(MOST)


def test_a_whole_text_can_wait_while_two_chunks_are_under_way() -> None:
    rounds = Rounds(slots=200)
    for _ in range(200 // MOST):
        rounds.backlog.ran(rounds.chunk(MOST), MOST)
    rounds.chunk(3, most=MOST)
    assert rounds.backlog.has_room(MOST)


def test_what_the_first_chunk_leaves_waits_for_texts_that_have_just_taken_their_rows() -> None:
    rounds = Rounds()
    for row in range(ROWS):
        rounds.replace(row)
    rounds.chunk(5)
    rounds.chunk(3)
    said, _ = rounds.given()
    assert [{i: int(token) for i, token in enumerate(row) if token != NOTHING} for row in said] == rounds.owed


def test_a_full_buffer_is_given_whole_also_where_it_has_wrapped_around() -> None:
    rounds = Rounds(slots=128 - 2 * MOST)
    for _ in range(3):
        rounds.chunk(MOST)
        rounds.replace(0)
    rounds.given()
    rounds.owed = [{} for _ in range(ROWS)]
    for size in (MOST, MOST, MOST, 8):
        rounds.chunk(size)
    assert not rounds.backlog.has_room(1)
    said, _ = rounds.given()
    assert [{i: int(token) for i, token in enumerate(row) if token != NOTHING} for row in said] == rounds.owed


def test_only_rounds_that_were_run_fill_it() -> None:
    """A chunk may end early. How many rounds it has had is known later, when others may have been added."""
    rounds = Rounds(slots=128 - 2 * MOST)
    backlog = rounds.backlog
    for _ in range(18):
        first = rounds.chunk(2, most=10)
        second = rounds.chunk(3, most=10)
        assert backlog.has_room(10)
        backlog.ran(first, 2)
        backlog.ran(second, 3)
    assert not backlog.has_room(MOST)
    said, _ = rounds.given()
    assert [{i: int(token) for i, token in enumerate(row) if token != NOTHING} for row in said] == rounds.owed


def test_a_chunk_that_is_read_after_its_text_has_left_says_nothing_of_the_next_one() -> None:
    rounds = Rounds(slots=128 - 2 * MOST)
    backlog = rounds.backlog
    early = [rounds.chunk(1, [0], most=MOST) for _ in range(2)]
    rounds.replace(0)
    rounds.chunk(MOST, [0])
    backlog.ran(early[0], 1)
    for _ in range(2):
        assert backlog.has_room(MOST)
        rounds.chunk(MOST, [0])
    backlog.ran(early[1], 1)
    assert not backlog.has_room(MOST)


def test_a_row_in_which_nothing_waits_does_not_fill_it() -> None:
    """But a text that has ended keeps what waits of it: rounds that go on write to all rows, and come around to it."""
    rounds = Rounds(slots=128 - 2 * MOST)
    backlog = rounds.backlog
    for _ in range(10):
        assert backlog.has_room(128)
        rounds.chunk(MOST, [0])
        rounds.replace(0)
    rounds.chunk(MOST, [1])
    for _ in range(2):
        rounds.chunk(MOST, [0])
        rounds.replace(0)
    assert not backlog.has_room(9), "row 1 has ended, and its tokens must not be overwritten"
    said, _ = rounds.given()
    assert {i: int(token) for i, token in enumerate(said[1]) if token != NOTHING} == rounds.owed[1]
    assert backlog.has_room(128)
