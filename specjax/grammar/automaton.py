"""Regular expressions as automata over bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Bool, Int, Shaped

from specjax.grammar.expression import END_MARK, START_MARK, GrammarError, copies, without_anchors, without_marks

END, SHOWN = 256, 80
"""The token that ends a text for outlines-core, behind the 256 bytes; and characters that messages quote."""

DEAD_END = "Found no transitions"
"""So outlines-core begins to say that no text matches."""

DEAD = -1
"""In place of a state: no text goes on from here."""

MOST_COPIES = 200_000
"""What counted repetitions may add to an expression, see `copies`. An automaton of so many states takes some GB."""

MOST_WORK = 500_000
"""States times bytes by which they are told apart, before an automaton stays as large as it is."""


@dataclass(frozen=True, eq=False)
class ByteAutomaton:
    """A deterministic automaton; state 0 is the first.

    Attributes:
        next: [states, 256] int32, the state after each byte; `DEAD` for none.
        accepting: [states], where a text may end.
    """

    next: np.ndarray
    accepting: np.ndarray


def byte_automaton(regex: str) -> ByteAutomaton:
    """The automaton of the texts that an expression matches as a whole.

    outlines-core compiles the expression. Its automata follow the preferences of a search: after `a|ab` has matched
    "a", no "b" may follow. A mark behind the expression makes all matches count: a text matches as a whole if the mark
    may follow it. A mark before it keeps the automaton small, which looks for matches that begin later too.

    Raises:
        GrammarError: outlines-core is not installed, it does not take the expression, or repetitions are too large.
    """
    if (added := copies(regex)) > MOST_COPIES:
        raise GrammarError(
            f"the regular expression {_shown(regex)} repeats its parts so often that they come to {added} characters"
            f" more; up to {MOST_COPIES} are compiled: count less far in {{m,n}}, maxLength or maxItems, or leave the"
            " count out"
        )
    index = _index(f"{START_MARK}(?:{without_marks(without_anchors(regex))}){END_MARK}", regex)
    return _marked(index.get_transitions(), index.get_initial_state(), set(index.get_final_states()))


def _index(regex: str, given: str) -> Any:
    """What outlines-core makes of an expression, with bytes as tokens; messages name the one that was `given`."""
    try:
        from outlines_core import Index, Vocabulary
    except ImportError as error:
        raise GrammarError(
            "structured output needs outlines-core, which is not installed; install it with: pip install"
            " 'specjax[grammar]'"
        ) from error
    try:
        return Index(regex, Vocabulary(END, {bytes([byte]): [byte] for byte in range(END)}))
    except ValueError as error:
        if DEAD_END in str(error):
            raise GrammarError(
                f"no text matches the regular expression {_shown(given)}; ^ and $ may stand only at its very ends"
            ) from error
        raise GrammarError(
            f"the regular expression {_shown(given)} cannot be compiled: {error}; its syntax is that of Rust's crate"
            " regex, which has no look-around and no references back"
        ) from error


def _shown(regex: str) -> str:
    return repr(regex if len(regex) <= SHOWN else regex[: SHOWN - 3] + "...")


def _marked(transitions: dict[int, dict[int, int]], first: int, final: set[int]) -> ByteAutomaton:
    """The automaton without the marks, from one in which they begin and end every text."""
    for byte in START_MARK.encode():
        first = transitions.get(first, {}).get(byte, first)
    states = [first, *(state for state in transitions if state != first)]
    number = {state: place for place, state in enumerate(states)}
    following = np.full((len(states), 256), DEAD, np.int32)
    for state, edges in transitions.items():
        targets = [number.get(after, DEAD) for after in edges.values()]
        letters = np.fromiter(edges, np.int64, len(edges))
        kept = letters != END
        following[number[state], letters[kept]] = np.asarray(targets, np.int32)[kept]
    mark = np.arange(len(states))
    *before, end = tuple(END_MARK.encode())
    for each in before:
        mark = np.where(mark == DEAD, DEAD, following[mark, each])
    marked = np.where(mark == DEAD, DEAD, following[mark, end])
    accepting = (marked != DEAD) & np.isin(states, list(final))[marked]
    following[mark[accepting], end] = DEAD
    useful = reached(np.flatnonzero(accepting), distinct_columns(following)[0], backward=True)
    return _smallest(np.where((following != DEAD) & useful[following], following, DEAD), accepting)


def distinct_columns(table: Shaped[np.ndarray, "n m"]) -> tuple[Shaped[np.ndarray, "n k"], Int[np.ndarray, "m"]]:
    """The columns of a table that differ, in the order in which they first come, and which of them each column is."""
    turned = np.ascontiguousarray(table.T)
    known: dict[bytes, int] = {}
    which = np.array([known.setdefault(column.tobytes(), len(known)) for column in turned], np.int64)
    _, first = np.unique(which, return_index=True)
    return np.ascontiguousarray(turned[first].T), which


def _smallest(following: np.ndarray, accepting: np.ndarray) -> ByteAutomaton:
    """The automaton with states put together that no text tells apart.

    States from which only finitely many texts go on, as in counted repetitions, are looked at from the end of the texts
    on: two are the same if the same letters lead to the same states. The others are told apart by one more byte each
    time, until nothing changes. Where that takes too long all of these stay.
    """
    columns, _ = distinct_columns(following)
    block = _finite_blocks(columns, accepting)
    finite, count = block >= 0, int(block.max(initial=-1)) + 1
    endless = np.flatnonzero(~finite)
    block[endless] = count + accepting[endless]
    for _ in range(MOST_WORK // max(len(endless), 1)):
        rows = columns[endless]
        finer = block[endless]
        for column in (*rows.T, None):
            _, finer = np.unique(finer, return_inverse=True)
            if column is not None:
                finer = finer * (len(following) + 2) + np.where(column == DEAD, 0, block[column] + 1)
        if finer.max(initial=-1) + 1 == len(np.unique(block[endless])):
            break
        block[endless] = count + finer
    else:
        block[endless] = count + np.arange(len(endless))
    _, first, number = np.unique(block, return_index=True, return_inverse=True)
    order = np.argsort(np.where(first == first[number[0]], -1, first))  # the first state stays the first
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    kept = following[first[order]]
    return ByteAutomaton(np.where(kept == DEAD, DEAD, place[number[kept]]).astype(np.int32), accepting[first[order]])


def _finite_blocks(columns: Int[np.ndarray, "n k"], accepting: Bool[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Numbers of the states from which finitely many texts go on, equal where these are the same; -1 for the others."""
    block = np.full(len(columns), -1, np.int64)
    targets = [set(row) - {DEAD} for row in columns.tolist()]
    left, before = [len(each) for each in targets], _before(columns)
    known: dict[tuple, int] = {}
    waiting = [state for state, count in enumerate(left) if count == 0]
    while waiting:
        state = waiting.pop()
        row = np.where(columns[state] == DEAD, DEAD, block[columns[state]])
        block[state] = known.setdefault((bool(accepting[state]), row.tobytes()), len(known))
        for other in before[state]:
            left[other] -= 1
            if left[other] == 0:
                waiting.append(other)
    return block


def _before(table: Int[np.ndarray, "n k"]) -> list[list[int]]:
    """For each state those that a letter leads from to it, each of them once."""
    state, letter = np.nonzero(table != DEAD)
    pairs = np.unique(table[state, letter].astype(np.int64) * len(table) + state)
    after, state = pairs // len(table), pairs % len(table)
    ends = np.searchsorted(after, np.arange(len(table) + 1))
    return [state[begin:end].tolist() for begin, end in pairwise(ends.tolist())]


def reached(starts: Iterable[int], table: np.ndarray, *, backward: bool) -> np.ndarray:
    """The states that a way leads to from some of them; `backward`, those from which a way leads there.

    Args:
        starts: the states where ways begin or, backward, end.
        table: [states, letters], the state after each letter, or `DEAD`.
        backward: see there.
    """
    before = _before(table) if backward else None
    found, waiting = np.zeros(len(table), bool), list(starts)
    found[waiting] = True
    while waiting:
        state = waiting.pop()
        others = before[state] if before is not None else set(table[state].tolist()) - {DEAD}
        for other in others:
            if not found[other]:
                found[other] = True
                waiting.append(other)
    return found
