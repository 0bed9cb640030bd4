"""Texts of a trace as HTML: each token shows how it was made."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specjax.traces.trace import Trace

ACCEPTED = "rgba(46, 160, 67, {strength:.2f})"
"""The background of an accepted draft; later places of a round are stronger."""

REPLACED = "box-shadow: inset 0 -2px rgba(218, 54, 51, 0.9)"
"""The style of a token that was chosen instead of a draft: a line that takes no room. A border would stick out of the
last line, and Jupyter would scroll the text for it."""

BOX = (
    "border-left: 3px solid #888; padding-left: 1em; margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;"
    " font-family: var(--jp-code-font-family, monospace)"
)
"""The style of a text. Long words break, so that nothing is cut off where there is little room. Pages that nbconvert
writes have no font of a fixed width in outputs of their own.
"""

APART = "margin-bottom: 0.5em"
"""The style of a text among others."""

MOST_TEXTS = 20
"""How many texts are shown."""


def page(trace: Trace) -> str:
    """All texts with a legend."""
    shown = trace.texts[:MOST_TEXTS]
    more = f"<p>and {len(trace.texts) - len(shown)} more</p>" if len(trace.texts) > len(shown) else ""
    boxes = "".join(
        f"<div style='{APART}'><small>text {text.number}</small>"
        f"<pre style='{BOX}'>{coloured(trace, text.number)}</pre></div>"
        for text in shown
    )
    return f"{boxes}{more}{legend()}<small>{escape(repr(trace))}</small>"


def coloured(trace: Trace, number: int, length: int | None = None) -> str:
    """One text without its prompt: accepted drafts on green, tokens that replaced a draft underlined, others plain.

    A character that several tokens form together stands where the last of them is, and has the style of one of them: of
    one that replaced a draft, if there is one.

    Only the first `length` characters are shown, if it is given: the tokens of a text can go on behind a stop string.

    Hovering over a token tells its place, its probabilities, and what had been drafted.
    """
    own = trace.of_text(number)
    made = [Made(own.pieces.get(own.texts[0].first, b""))]
    for index in range(len(own)):
        made += [_made(own, index, place) for place in range(own.n_emitted[index])]
    left, spans = Room(length), []
    for string, tokens in _characters(made):
        shown = left.take(string)
        if shown or left.length != 0:  # control tokens have no text, but are shown to have been drafted
            spans.append(_span(shown, tokens))
    return f"<span>{''.join(spans)}</span>"  # <pre> would swallow a line break at its start


@dataclass(frozen=True)
class Made:
    """A token and how it was made.

    Attributes:
        piece: its bytes.
        style: of what it shows; empty if it was not drafted.
        about: what hovering over it tells.
    """

    piece: bytes
    style: str = ""
    about: str = ""


def _characters(made: Sequence[Made]) -> Iterator[tuple[str, list[Made]]]:
    """Text, and the tokens that it comes from: several where none of them but the last completes a character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    waiting: list[Made] = []
    for token in made:
        waiting.append(token)
        string = decoder.decode(token.piece)
        if string or not decoder.getstate()[0]:
            yield string, waiting
            waiting = []
    if rest := decoder.decode(b"", final=True):
        yield rest, waiting


@dataclass
class Room:
    """How many characters there is room for; None for any number."""

    length: int | None

    def take(self, string: str) -> str:
        """As much of the string as there is room for."""
        if self.length is None:
            return string
        shown = string[: self.length]
        self.length -= len(shown)
        return shown


def legend() -> str:
    """What the colours of `coloured` mean."""
    sample = f"<span style='background: {ACCEPTED.format(strength=0.4)}'>accepted draft</span>"
    replaced = f"<span style='{REPLACED}'>chosen instead of a draft</span>"
    return f"<small>{sample} &middot; {replaced} &middot; not drafted</small><br>"


def _made(trace: Trace, index: int, place: int) -> Made:
    piece = trace.pieces.get(int(trace.tokens[index, place]), b"")
    if place < trace.n_accepted[index]:
        strength = 0.2 + 0.5 * place / max(trace.drafts.shape[1] - 1, 1)
        about = f"draft {place + 1} of {trace.n_drafted[index]}, accepted{_numbers(trace, index, place)}"
        return Made(piece, f"background: {ACCEPTED.format(strength=strength)}", about)
    if place < trace.n_drafted[index]:
        draft = trace.strings.get(int(trace.drafts[index, place]), "")
        return Made(piece, REPLACED, f"drafted {draft!r} instead, refused{_numbers(trace, index, place)}")
    return Made(piece)


def _numbers(trace: Trace, index: int, place: int) -> str:
    """The probabilities of a draft, as far as they are known."""
    known = (("confidence", trace.confidence), ("p", trace.p), ("q", trace.q))
    values = ((name, array[index, place]) for name, array in known)
    return "".join(f", {name} {value:.3f}" for name, value in values if value == value)


def _span(string: str, tokens: Sequence[Made]) -> str:
    """The text with the style of its tokens, and what there is to tell of them."""
    styles = [token.style for token in tokens if token.style]
    if not styles:
        return escape(string)
    style = REPLACED if REPLACED in styles else styles[-1]
    about = "; ".join(token.about for token in tokens if token.about)
    return f"<span style='{style}' title='{escape(about)}'>{escape(string)}</span>"
