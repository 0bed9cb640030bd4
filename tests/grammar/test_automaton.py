"""Grammars allow what `re.fullmatch` and the spelling of tokens allow, and nothing else: by trying all texts."""

from __future__ import annotations

import re
from collections import deque

import numpy as np
import pytest

from specjax.decoding.grammar import FORBIDDEN, Grammar
from specjax.grammar.automaton import byte_automaton
from specjax.grammar.expression import GrammarError, copies
from specjax.grammar.tokens import over_tokens

PIECES = (b"a", b"b", b"ab", b"aba", b"\xc3", b"\xa9", "é".encode(), b"\xa9a", b'"', b"1", b"\n", b"")
END = len(PIECES)
V = END + 3  # two rows behind the vocabulary
LONGEST = 4

REGEXES = (
    ("a|ab", "a preference for the shorter"),
    ("(?:a|ab)(?:b1)?", "two ways to read one text"),
    ("a*?b*?", "lazy repetitions"),
    ("^ab+$", "anchors that say nothing"),
    ("é+|b", "characters of two bytes"),
    ("[^ab]*", "a class with characters of all lengths"),
    ('"(?:[^"\\\\]|\\\\.)*"', "strings"),
    ("(?i:A)(?:b|\\$|1){0,2}", "flags and escapes"),
    ("", "the empty text alone"),
    (".*", "everything but a new line"),
    ("(?:ab)*a(?:ba)*", "states that are the same"),
    ("a{2,3}1", "counted repetitions"),
)


def matches(regex: str, text: bytes) -> bool:
    try:
        return re.fullmatch(regex, text.decode()) is not None
    except UnicodeDecodeError:
        return False


def made(regex: str) -> Grammar:
    return over_tokens(byte_automaton(regex), PIECES, [END], V)


def a_way_out(grammar: Grammar, state: int) -> list[int]:
    """The fewest tokens from a state to an end."""
    ways: dict[int, list[int]] = {state: []}
    waiting = deque([state])
    while waiting:
        here = waiting.popleft()
        for token in np.flatnonzero(grammar.allowed(here)):
            if token == END:
                return ways[here]
            after = grammar.after([int(token)], here)
            if after not in ways:
                ways[after] = [*ways[here], int(token)]
                waiting.append(after)
    raise AssertionError("no way leads to an end")


@pytest.mark.parametrize(("regex", "_"), REGEXES, ids=[name for _, name in REGEXES])
def test_tokens_are_allowed_as_far_as_some_text_matches(regex: str, _: str) -> None:
    grammar = made(regex)
    tried, met = 0, set()
    texts: list[tuple[tuple[int, ...], int]] = [((), 0)]
    for text, state in texts:
        whole = b"".join(PIECES[token] for token in text)
        allowed = grammar.allowed(state)
        assert allowed[END] == matches(regex, whole)
        if state not in met:  # what is allowed can be completed
            met.add(state)
            rest = b"".join(PIECES[token] for token in a_way_out(grammar, state))
            assert matches(regex, whole + rest)
        for token in range(V):
            if token != END and not allowed[token]:
                # What is not allowed cannot: no text that begins so matches, as long as it may be here.
                assert token >= END or not PIECES[token] or not completes(regex, whole + PIECES[token])
        tried += 1
        if len(text) < LONGEST:
            texts += [((*text, int(t)), grammar.after([int(t)], state)) for t in np.flatnonzero(allowed) if t != END]
    assert tried > 1 or regex == ""


def completes(regex: str, text: bytes, more: int = 2) -> bool:
    """Whether a text or a continuation by a few tokens matches."""
    if matches(regex, text):
        return True
    return more > 0 and any(completes(regex, text + piece, more - 1) for piece in PIECES if piece)


def test_after_the_end_there_is_only_the_end() -> None:
    grammar = made("a|ab")
    ended = grammar.after([0, END])
    assert np.flatnonzero(grammar.allowed(ended)).tolist() == [END]
    assert grammar.after([END], ended) == ended


def test_a_token_that_is_not_allowed_is_an_error() -> None:
    with pytest.raises(ValueError, match="number 2 of the text"):
        made("ab").after([0, 0])


def test_tokens_that_do_the_same_are_one_class() -> None:
    """Classes are as few as they can be, and every state can be reached and left."""
    grammar = made("(?:ab|é)*1")
    assert len(np.unique(grammar.next, axis=1).T) == grammar.next.shape[1]
    reached = {0} | {int(state) for state in grammar.next.ravel() if state != FORBIDDEN}
    assert reached == set(range(len(grammar.next)))
    for state in reached:
        a_way_out(grammar, state)


@pytest.mark.parametrize(
    ("regex", "message"),
    [
        ("a)(b", "closes a bracket that is not open"),
        ("(?=a)a", "cannot be compiled.*no look-around"),
        ("a[^\\s\\S]", "no text matches the regular expression"),
        ("a^b", "may stand only at its very ends"),
        ("a{900000}", "come to 899999 characters more"),
        ("(?:[^a]{100}|b){999}", "come to 400594 characters more"),
        ("xyz", "no text that the grammar allows can be spelled"),
    ],
)
def test_what_cannot_be_held_is_refused(regex: str, message: str) -> None:
    def compiled() -> Grammar:
        byte_automaton(regex)
        return made(regex)

    with pytest.raises(GrammarError, match=message):
        compiled()


def test_ways_that_cannot_be_spelled_to_the_end_are_not_begun() -> None:
    """There is no "c": "a" may be followed by "b", and by nothing that leads to a "c"."""
    grammar = made("a(?:b|1c)|bc")
    assert np.flatnonzero(grammar.allowed(0)).tolist() == [0, 2]
    assert np.flatnonzero(grammar.allowed(grammar.after([0]))).tolist() == [1]


@pytest.mark.parametrize(
    "regex",
    [
        "[a-z_][a-z0-9_]{0,60}",
        r"- [^\n]{1,40}(\n- [^\n]{1,40}){0,3}",
        ".{1,60}x",
        r"[^]-]{1,40}",
        r"\W{1,8}b",
        r"[^-\]]{1,40}",
    ],
)
def test_counted_repetitions_stay_small(regex: str) -> None:
    """Without a mark at the start, automata that look for later matches too would double with each count."""
    automaton = byte_automaton(regex)
    assert len(automaton.next) < 4000
    for text in ("ab_", "- one\n- two", "ax", "a]b", "!b", "-", "]", "a\nx"):
        state = 0
        for byte in text.encode():
            state = int(automaton.next[state, byte]) if state >= 0 else -1
        assert (state >= 0 and bool(automaton.accepting[state])) == bool(re.fullmatch(regex, text)), text


@pytest.mark.parametrize(
    ("regex", "added"),
    [
        ("a{3}b{0,2}c{2,}d{0,}", 2 + 1 + 1),
        ("(ab){2,5}(?:cd){1}(?P<n>e){3}", 8 + 0 + 2),
        ("(?:a{10}|b){10}", 9 + 9 * 11),
        (r"\{3}[{3}][]{3}]\p{L}\x{10fffe}", 0),
        (r"[^]a]{3}\p{L}{2}.{2}[\]]{2}", 4 * (2 + 1 + 1 + 1)),
    ],
)
def test_what_counted_repetitions_add_is_counted(regex: str, added: int) -> None:
    """A class counts as 4 characters."""
    assert copies(regex) == added
