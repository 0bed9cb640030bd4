"""How sessions look: one line of text, and boxes of plain HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from specjax.sessions.turns import Turn, stretches
from specjax.traces.html import BOX

if TYPE_CHECKING:
    from specjax.runtime.model import Model
    from specjax.sessions.session import Session

REPLY = "background: rgba(90, 150, 230, 0.22)"
"""What the model said stands on a coloured ground, in light and dark themes."""

LONGEST_TEXT, LONGEST_HTML = 60, 800
"""The most characters of a text that a line shows, and that a box shows."""


def shown(model: Model, tokens: Sequence[int]) -> str:
    """The text of tokens, or their ids if the model has no tokenizer."""
    return " ".join(map(str, tokens)) if model.tokenizer is None else model.decode(tokens)


def elided(text: str, most: int = LONGEST_TEXT) -> str:
    """The text; of a longer one the start and the end."""
    return text if len(text) <= most else f"{text[: most // 2]} … {text[-(most // 2) :]}"


def marked(model: Model, tokens: Sequence[int], turns: Sequence[Turn], begin: int, end: int) -> str:
    """The tokens from `begin` to `end` of a conversation in HTML, the model's part marked."""
    parts = []
    for part in stretches(turns, begin, end):
        text = escape(elided(shown(model, tokens[part.begin : part.end]), LONGEST_HTML))
        style = REPLY if part.reply else ""  # in a span also without one: <pre> swallows a line break at its start
        parts.append(f"<span style='{style}'>{text}</span>")
    return "".join(parts)


def count_of(number: int, what: str) -> str:
    """The number with its noun, which takes an s unless there is one."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def no_session(value: object) -> TypeError:
    """The error where a session is wanted and something else is given."""
    return TypeError(
        f"{value!r:.60} is no session; give sessions: what model.session(...) returns, or the second thing that a turn"
        " returns, as in `reply, chat = chat.generate(...)`"
    )


def _figures(session: Session) -> list[str]:
    figures = [count_of(len(session.turns), "turn"), f"{len(session.conversation)} tokens, room for {session.slots}"]
    if dropped := sum(cut.drop for cut in session.cuts):
        figures.append(f"{dropped} dropped")
    if session.reuse is not None:
        figures.append(f"last: {session.reuse.reused} reused, {session.reuse.fed} fed")
    return figures


def session_text(session: Session) -> str:
    """See `Session.__repr__`: one line, with the end of the text."""
    name = "" if session.name is None else f"{session.name!r}, "
    text = shown(session.model, session.conversation[-LONGEST_TEXT:])
    return f"Session({name}{'; '.join(_figures(session))}: {elided(text)!r})"


def session_html(session: Session) -> str:
    """See `Session._repr_html_`: all turns, with the figures below."""
    text = marked(session.model, session.conversation, session.turns, 0, len(session.conversation))
    name = [] if session.name is None else [f"<b>{escape(session.name)}</b>"]
    figures = " &middot; ".join([*name, *map(escape, _figures(session))])
    return f"<pre style='{BOX}'>{text}</pre><small>{figures}</small>"
