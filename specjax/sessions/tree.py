"""Sessions as a tree of forks. It is read off their conversations: what begins alike stands on one branch.

So nobody has to remember who was forked from whom, and a session that was saved, loaded or taken back finds its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from specjax.runtime.memory import common_prefix
from specjax.sessions.look import BOX, REPLY, count_of, elided, marked, no_session, shown
from specjax.sessions.session import Session


@dataclass(frozen=True, eq=False)
class Branch:
    """Tokens that some sessions share, up to where they part or one of them ends.

    Attributes:
        begin, end: where the tokens stand in the conversations.
        sessions: those that share them.
        ending: those of them that end here, as numbers in `SessionTree.sessions`.
        children: the branches that follow.
    """

    begin: int
    end: int
    sessions: tuple[Session, ...] = field(repr=False)
    ending: tuple[int, ...]
    children: tuple[Branch, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of this branch alone."""
        return self.sessions[0].conversation[self.begin : self.end]

    @property
    def text(self) -> str:
        """The same as text, or as numbers if the model has no tokenizer."""
        return shown(self.sessions[0].model, self.tokens)

    @property
    def size(self) -> int:
        """Tokens of this branch and of all that follow."""
        return self.end - self.begin + sum(child.size for child in self.children)


@dataclass(frozen=True, eq=False)
class SessionTree:
    """See `session_tree`.

    Attributes:
        sessions: all of them, in the order given.
        root: what they all share; without tokens if that is nothing.
    """

    sessions: tuple[Session, ...] = field(repr=False)
    root: Branch

    def name_of(self, index: int) -> str:
        """What a session is called here: its name, or its number."""
        return self.sessions[index].name or f"session {index}"

    def _summary(self) -> str:
        total = sum(len(session.conversation) for session in self.sessions)
        return f"{count_of(len(self.sessions), 'session')}, {total} tokens, of which {self.root.size} are different"

    def _label(self, branch: Branch, write: Callable[[str], str]) -> str:
        """How long a branch is, and the names of those who end there, written so."""
        size = count_of(branch.end - branch.begin, "token")
        return ", ".join([size, *(write(self.name_of(index)) for index in branch.ending)])

    def _lines(self, branch: Branch, first: str, others: str) -> Iterator[str]:
        text = repr(elided(branch.text)) if branch.tokens else "(nothing)"
        yield f"{first}{text}  {self._label(branch, '[{}]'.format)}"
        for child in branch.children:
            last = child is branch.children[-1]
            yield from self._lines(child, others + ("└─ " if last else "├─ "), others + ("   " if last else "│  "))

    def __repr__(self) -> str:
        return "\n".join([f"SessionTree({self._summary()})", *self._lines(self.root, "", "")])

    def _html(self, branch: Branch) -> str:
        session = branch.sessions[0]
        text = marked(session.model, session.conversation, session.turns, branch.begin, branch.end)
        children = "".join(map(self._html, branch.children))
        if children:
            children = f"<div style='margin-left: 2em'>{children}</div>"
        return (
            f"<div style='margin-top: 0.5em'><pre style='{BOX}'>{text}</pre>"
            f"<small>{self._label(branch, lambda name: f'<b>{escape(name)}</b>')}</small>{children}</div>"
        )

    def _repr_html_(self) -> str:
        """The branches as nested boxes, for notebooks."""
        note = f"<span style='{REPLY}'>marked</span>: said by the model"
        return f"{self._html(self.root)}<small>{escape(self._summary())} &middot; {note}</small>"


def session_tree(sessions: Session | Iterable[Session]) -> SessionTree:
    """Sessions as a tree, to be looked at in a notebook or printed.

    >>> specjax.session_tree([chat, chat.rewind(20).fork("twenty back")])

    Args:
        sessions: one, or several of one model or of models with the same tokens. Those with names are shown by them,
            see `Session.fork`.

    Raises:
        ValueError: there are none.
        TypeError: one of them is no session.
    """
    given = (sessions,) if isinstance(sessions, Session) else tuple(sessions)
    if strangers := [each for each in given if not isinstance(each, Session)]:
        raise no_session(strangers[0])
    if not given:
        raise ValueError("there are no sessions to draw; give at least one")
    return SessionTree(given, _grown(list(enumerate(given)), 0))


def _grown(sessions: Sequence[tuple[int, Session]], begin: int) -> Branch:
    """The branch of sessions that are alike up to `begin`, with all that follows."""
    first = sessions[0][1].conversation
    end = min(common_prefix(first, session.conversation) for _, session in sessions)
    groups: dict[int, list[tuple[int, Session]]] = {}
    for index, session in sessions:
        if len(session.conversation) > end:
            groups.setdefault(session.conversation[end], []).append((index, session))
    return Branch(
        begin=begin,
        end=end,
        sessions=tuple(session for _, session in sessions),
        ending=tuple(index for index, session in sessions if len(session.conversation) == end),
        children=tuple(_grown(group, end) for group in groups.values()),
    )
