"""From an automaton over bytes to one over the tokens of a vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specjax.decoding.grammar import FORBIDDEN, Grammar
from specjax.grammar.automaton import DEAD, ByteAutomaton, distinct_columns, reached
from specjax.grammar.expression import GrammarError


def over_tokens(automaton: ByteAutomaton, pieces: Sequence[bytes], ends: Sequence[int], size: int) -> Grammar:
    """The grammar whose texts are those of an automaton, spelled in tokens and ended by one of `ends`.

    Args:
        automaton: says which texts there are.
        pieces: the bytes of each token; tokens without bytes are never allowed.
        ends: tokens that end a text. They are allowed where a text may end, and there alone.
        size: V of the model; ids behind those of the pieces are never allowed.

    Raises:
        GrammarError: no text of the automaton can be spelled with these tokens.
    """
    ends = [token for token in ends if token < size]
    spelled = [b"" if token in ends else piece for token, piece in enumerate(pieces[:size])]
    maps, classes = token_maps(automaton.next, spelled)
    classes = np.pad(classes, (0, size - len(classes)))
    # One more state, in which the text has ended, and one more class, of the tokens that end it.
    states = len(automaton.next)
    table = np.full((states + 1, len(maps) + 1), DEAD, np.int32)
    table[:-1, :-1] = maps.T
    table[:-1, -1] = np.where(automaton.accepting, states, DEAD)
    table[-1, -1] = states
    classes[list(ends)] = len(maps)
    return _trimmed(table, classes, states)


def begun_by(grammar: Grammar, token: int, free: np.ndarray) -> Grammar:
    """The grammar that begins after a token.

    Args:
        grammar: what is allowed after it.
        token: which token that is.
        free: [V], the tokens that may come before it, in any order.
    """
    waiting = np.where(free, 0, FORBIDDEN)
    waiting[token] = 1
    pairs, classes = np.unique(np.stack([waiting, grammar.classes]), axis=1, return_inverse=True)
    moved = np.where(grammar.next == FORBIDDEN, FORBIDDEN, grammar.next + 1)
    table = np.concatenate([pairs[:1], moved[:, pairs[1]]])
    return Grammar(table.astype(np.int32), np.ravel(classes).astype(np.int32))


def token_maps(following: np.ndarray, pieces: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """What each token does to each state: the different maps from state to state, and which of them each token is.

    Tokens are read byte by byte, all together. Tokens whose first bytes do the same to every state go on as one, so
    that what is computed depends on how many maps there are and hardly on how many tokens.

    Args:
        following: [states, 256], the state after a byte, or `DEAD`.
        pieces: the bytes of each token.

    Returns:
        The maps [maps, states], of which the first allows nothing; and the map of each token.
    """
    dead = len(following)
    table = np.where(following == DEAD, dead, following)
    table = np.concatenate([table, np.full((1, 256), dead)]).astype(np.min_scalar_type(dead))
    columns, byte_class = distinct_columns(table)
    width = columns.shape[1]
    lengths = np.array([len(piece) for piece in pieces])
    text = np.frombuffer(b"".join(pieces), np.uint8)
    starts = np.cumsum(lengths) - lengths

    known: dict[bytes, int] = {}
    maps: list[np.ndarray] = []

    def number(row: np.ndarray) -> int:
        place = known.setdefault(row.tobytes(), len(maps))
        if place == len(maps):
            maps.append(row)
        return place

    nothing = number(np.full(dead + 1, dead, table.dtype))
    present = np.full(len(pieces), number(np.arange(dead + 1, dtype=table.dtype)))
    present[lengths == 0] = nothing
    for place in range(max(lengths, default=0)):
        going = np.flatnonzero((lengths > place) & (present != nothing))
        pairs = present[going] * width + byte_class[text[starts[going] + place]]
        pairs, which = np.unique(pairs, return_inverse=True)
        after = [
            number(columns[maps[before], byte]) for before, byte in zip(pairs // width, pairs % width, strict=True)
        ]
        present[going] = np.asarray(after, np.int64)[which]
    used, classes = np.unique(np.append(nothing, present), return_inverse=True)
    rows = np.stack([maps[each] for each in used])[:, :dead].astype(np.int32)
    return np.where(rows == dead, DEAD, rows), np.ravel(classes)[1:]


def _trimmed(table: np.ndarray, classes: np.ndarray, last: int) -> Grammar:
    """Without states that the first one does not lead to, and without those that do not lead to the last one."""
    ends = reached([last], table, backward=True)
    if not ends[0]:
        raise GrammarError(
            "no text that the grammar allows can be spelled with the tokens of this model; look for characters that it"
            " has no tokens for, or for a part that can never match"
        )
    table = np.where((table != DEAD) & ends[table], table, DEAD)
    kept = np.flatnonzero(reached([0], table, backward=False))
    number = np.full(len(table) + 1, DEAD)
    number[kept] = np.arange(len(kept))
    columns, which = distinct_columns(number[table[kept]])
    return Grammar(columns.astype(np.int32), which[classes].astype(np.int32))
