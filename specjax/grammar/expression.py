"""What is done to a regular expression of a user's before it is compiled."""

from __future__ import annotations

import re

from specjax.errors import SpecjaxError

START_MARK, END_MARK = "\U0010fffe", "\U0010ffff"
"""Code points that never stand for a character. No text that an expression matches here contains them."""

_NO_MARKS = r"[^\x{10fffe}\x{10ffff}]"
_ANY = r"[^\n\x{10fffe}\x{10ffff}]"
_PIECE = re.compile(
    r"\\[pPxuU]\{\w*\}|\\.|\((?:\?(?:P?<\w+>|[a-zA-Z-]*:))?|\[\^?\]?|\{(\d{1,10})(?:,(\d{0,10}))?\}|.", re.DOTALL
)
_CLASS = 4
"""A class of characters counts as so many: those that are written in several bytes take several states."""
_NEGATED = {r"\D", r"\W", r"\S"}


class GrammarError(SpecjaxError):
    """A JSON schema or a regular expression that no text can be held to."""


def without_anchors(regex: str) -> str:
    """Without ^ at the start and $ at the end, which say what is so anyway."""
    bare = regex.removeprefix("^")
    escaped = len(bare) - 1 - len(bare[:-1].rstrip("\\"))
    return bare[:-1] if bare.endswith("$") and escaped % 2 == 0 else bare


def copies(regex: str) -> int:
    """How many characters counted repetitions, such as {3,5}, add to an expression when they are written out."""
    added = 0
    groups, last, classes = [0], 0, 0
    for match in _PIECE.finditer(regex):
        piece = match[0]
        if classes:
            classes += piece.startswith("[") - (piece == "]")
            continue
        if match[1]:
            times = max(int(match[1]), int(match[2] or 0), 1)
            added += last * (times - 1)
            groups[-1] += last * (times - 1)
            last *= times
        elif piece.startswith("("):
            groups.append(0)
        elif piece == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif piece not in ("|", "*", "+", "?"):
            classes = piece.startswith("[")
            last = _CLASS if classes or piece == "." or piece[1:2].isalpha() else 1
            groups[-1] += last
    return added


def without_marks(regex: str) -> str:
    """The expression, in which dots and classes that say what is not meant do not mean the marks.

    Raises:
        GrammarError: a bracket is closed that is not open, so that the expression is sound only with another around it.
    """
    dots = re.search(r"\(\?[a-zA-Z]*s", regex) is None  # else a dot means a new line too
    written, place, classes, groups = [], 0, 0, 0
    while place < len(regex):
        char = regex[place]
        taken = 2 if char == "\\" else 1
        piece = regex[place : place + taken]
        if piece in _NEGATED and not classes:
            piece = f"[{piece}&&{_NO_MARKS}]"
        elif char == "." and not classes and dots:
            piece = _ANY
        elif char == "[":
            classes += 1
            negated = regex[place + 1 : place + 2] == "^"
            taken += negated
            first = regex[place + taken : place + taken + 1]
            if negated and first in ("]", "-"):  # what they mean depends on their being first
                taken += 1
                piece = rf"[^\x{{10fffe}}\x{{10ffff}}\{first}"
            elif negated:
                piece = r"[^\x{10fffe}\x{10ffff}"
            elif first == "]":
                taken += 1
                piece = r"[\]"
        elif char == "]" and classes:
            classes -= 1
        elif char in "()" and not classes:
            groups += 1 if char == "(" else -1
            if groups < 0:
                raise GrammarError(f"the regular expression {regex!r} closes a bracket that is not open")
        written.append(piece)
        place += taken
    return "".join(written)
