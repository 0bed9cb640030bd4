"""Regular expressions as automata over bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from specjax.grammar.expression import END_MARK, START_MARK, GrammarError, without_anchors, without_marks

END, SHOWN = 256, 80
"""The token that ends a text for outlines-core, behind the 256 bytes; and characters that messages quote."""

DEAD = -1
"""In place of a state: no text goes on from here."""

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
        GrammarError: outlines-core is not installed, or it does not take the expression.
    """
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
        shown = given if len(given) <= SHOWN else given[: SHOWN - 3] + "..."
        raise GrammarError(f"the regular expression {shown!r} cannot be compiled: {error}") from error


def _marked(transitions: dict[int, dict[int, int]], first: int, final: set[int]) -> ByteAutomaton:
    """The automaton without the marks, from one in which they begin and end every text."""
    for byte in START_MARK.encode():
        first = transitions.get(first, {}).get(byte, first)
    states = [first, *(state for state in transitions if state != first)]
    number = {state: place for place, state in enumerate(states)}
    following = np.full((len(states), 256), DEAD, np.int32)
    for state, edges in transitions.items():
        for byte, after in edges.items():
            if byte != END and after in number:
                following[number[state], byte] = number[after]
    mark = np.arange(len(states))
    *before, end = tuple(END_MARK.encode())
    for each in before:
        mark = np.where(mark == DEAD, DEAD, following[mark, each])
    marked = np.where(mark == DEAD, DEAD, following[mark, end])
    accepting = (marked != DEAD) & np.isin(states, list(final))[marked]
    following[mark[accepting], end] = DEAD
    useful = reached(np.flatnonzero(accepting), following, backward=True)
    return _smallest(np.where((following != DEAD) & useful[following], following, DEAD), accepting)


def _smallest(following: np.ndarray, accepting: np.ndarray) -> ByteAutomaton:
    """The automaton with states put together that no text tells apart.

    States are told apart by one more byte each time, until nothing changes. Where that takes too long, as it does for
    texts of hundreds of characters, all of them stay.
    """
    columns = np.unique(following, axis=1)
    block = accepting.astype(np.int64)
    for _ in range(MOST_WORK // len(following)):
        after = np.where(columns == DEAD, DEAD, block[columns])
        _, first, finer = np.unique(np.column_stack([block, after]), axis=0, return_index=True, return_inverse=True)
        if len(first) == block.max() + 1:
            break
        block = np.ravel(finer)
    else:
        return ByteAutomaton(following, accepting)
    number = np.empty(len(first), np.int32)
    order = np.argsort(np.where(block[first] == block[0], -1, block[first]))  # the first state stays the first
    number[block[first[order]]] = np.arange(len(first))
    kept = following[first[order]]
    return ByteAutomaton(np.where(kept == DEAD, DEAD, number[block[kept]]), accepting[first[order]])


def reached(starts: Iterable[int], table: np.ndarray, *, backward: bool) -> np.ndarray:
    """The states that a way leads to from some of them; `backward`, those from which a way leads there.

    Args:
        starts: the states where ways begin or, backward, end.
        table: [states, letters], the state after each letter, or `DEAD`.
        backward: see there.
    """
    edges = {(state, after) for state, row in enumerate(table) for after in set(row.tolist()) if after != DEAD}
    neighbours: dict[int, list[int]] = {}
    for state, after in edges:
        one, other = (after, state) if backward else (state, after)
        neighbours.setdefault(one, []).append(other)
    found, waiting = np.zeros(len(table), bool), list(starts)
    found[waiting] = True
    while waiting:
        for other in neighbours.get(waiting.pop(), ()):
            if not found[other]:
                found[other] = True
                waiting.append(other)
    return found
