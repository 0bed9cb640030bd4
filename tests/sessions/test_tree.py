"""Sessions as a tree: branches are what conversations share, and turns say who said it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import specjax
from specjax.sessions.session import Session
from specjax.sessions.tree import Branch
from specjax.sessions.turns import Turn, stretches, turns_until, with_turn

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture(scope="module")
def empty() -> Session:
    return specjax.load(FIXTURES / "dense/qwen3/hf").session(slots=512)  # as test_rewind has them


def holding(empty: Session, text: str, prompt: int, name: str | None = None) -> Session:
    """A session with a conversation whose letters are tokens: a prompt and a reply."""
    tokens = tuple(token for letter in text for token in empty.model.encode(letter))
    assert len(tokens) == len(text)
    return replace(empty, conversation=tokens, turns=(Turn(prompt, len(text)),), name=name)


def test_turns_are_cut_and_joined() -> None:
    turns = with_turn(with_turn((), 5, 9), 12, 20)
    assert turns == ((5, 9), (12, 20))
    assert turns_until(turns, 25) == turns_until(turns, 20) == turns
    assert turns_until(turns, 15) == ((5, 9), (12, 15))
    assert turns_until(turns, 10) == ((5, 9), (10, 10))
    assert turns_until(turns, 9) == ((5, 9),)
    assert turns_until(turns, 3) == ((3, 3),)
    assert turns_until(turns, 0) == ()
    assert with_turn(turns[:1], 9, 14) == ((5, 14),), "the reply goes on"
    assert with_turn(turns_until(turns, 12), 13, 20) == ((5, 9), (13, 20)), "the prompt goes on"
    assert with_turn(turns[:1], 9, 9) == ((5, 9),)
    assert list(stretches(turns, 3, 14)) == [(3, 5, False), (5, 9, True), (9, 12, False), (12, 14, True)]


def test_branches_are_what_conversations_share(empty: Session) -> None:
    sessions = [
        holding(empty, "abcdefgh", 3, "long"),
        holding(empty, "abcd", 3),
        holding(empty, "abcdxy", 3),
        holding(empty, "abcdefzz", 3, "other"),
        holding(empty, "abcdefgh", 3, "twin"),
    ]
    tree = specjax.session_tree(iter(sessions))

    def drawn(branch: Branch) -> tuple:
        return branch.text, branch.ending, tuple(map(drawn, branch.children))

    ends = (("gh", (0, 4), ()), ("zz", (3,), ()))
    assert drawn(tree.root) == ("abcd", (1,), (("ef", (), ends), ("xy", (2,), ())))
    assert tree.root.size == 4 + 2 + 2 + 2 + 2
    assert repr(tree).splitlines() == [
        "SessionTree(5 sessions, 34 tokens, of which 12 are different)",
        "'abcd'  4 tokens, [session 1]",
        "├─ 'ef'  2 tokens",
        "│  ├─ 'gh'  2 tokens, [long], [twin]",
        "│  └─ 'zz'  2 tokens, [other]",
        "└─ 'xy'  2 tokens, [session 2]",
    ]


def test_sessions_that_share_nothing_stand_beside_each_other(empty: Session) -> None:
    tree = specjax.session_tree([empty, holding(empty, "ab", 1), holding(empty, "cd", 1)])
    assert repr(tree).splitlines()[1:] == [
        "(nothing)  0 tokens, [session 0]",
        "├─ 'ab'  2 tokens, [session 1]",
        "└─ 'cd'  2 tokens, [session 2]",
    ]
    with pytest.raises(ValueError, match="no sessions to draw"):
        specjax.session_tree([])
    with pytest.raises(TypeError, match="'a reply' is no session; give sessions"):
        specjax.session_tree(["a reply"])


def test_html_marks_what_the_model_said_and_escapes_everything(empty: Session) -> None:
    session = holding(empty, "<i>&'", 2, "<script>")
    tree = specjax.session_tree([session, holding(empty, "<i", 2)])
    for html in (session._repr_html_(), tree._repr_html_()):
        assert "&gt;&amp;&#x27;</span>" in html
        assert "&lt;i<" in html
        assert "&lt;script&gt;" in html
        assert "<script" not in html
        assert "<i" not in html
        assert html.count("<div") == html.count("</div>")
        assert html.count("<span") == html.count("</span>")


def test_a_long_text_is_shown_by_its_ends(empty: Session) -> None:
    session = holding(empty, "a" * 900 + "b" * 900, 1)
    assert "aaaa … bbbb" in session._repr_html_()
    assert len(session._repr_html_()) < 1500
    assert "1 turn; 1800 tokens, room for 512" in repr(session)
    tree = repr(specjax.session_tree(session))
    assert "aaaa … bbbb" in tree
    assert len(tree) < 200


def test_a_name_stays_with_what_follows(empty: Session) -> None:
    named = empty.fork("left")
    assert (empty.name, named.name) == (None, "left")
    after = named.generate(empty.model.encode("abcd"), max_tokens=2)[1]
    assert (after.name, after.rewind(1).name) == ("left", "left")
    assert repr(after).startswith("Session('left', 1 turn; 6 tokens, room for 512; last: 0 reused, 4 fed: ")
