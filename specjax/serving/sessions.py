"""Sessions of the server: conversations whose computed states are kept under a name, in memory and in a folder.

A session is a value. A turn goes on from what its session holds, and puts another one in its place. To fork is to have
the same value under another name; to go back is to shorten the conversation: the next turn finds the last state that
still serves. Nothing is computed for either.
"""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from checkpoints import CheckpointError
from specjax.errors import SpecjaxError
from specjax.runtime.memory import Memory, common_prefix, within_budget
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.serving.errors import ApiError, refused
from specjax.sessions.session import Session
from specjax.sessions.turns import turns_until, with_turn

NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
"""What a name may be: no path of its folder can come of it that leads elsewhere."""
ENDING = ".session.safetensors"


@dataclass(frozen=True)
class Held:
    """A session in memory.

    Attributes:
        session: the value.
        changed: whether it differs from its file.
        used: when it was used last, in seconds.
    """

    session: Session
    changed: bool
    used: float


class Sessions:
    """The sessions of a server. Handlers in several threads may share it.

    Attributes:
        folder: where they are saved; None keeps them in memory only.
        num_bytes: the budget for states in memory. Sessions that were not used for long give theirs up: they are saved
            first. Without a folder, or if its disk is full, their texts stay, and are computed again when they go on.
    """

    def __init__(self, model: Model, options: GenerateOptions, slots: int, folder: Path | None, num_bytes: int) -> None:
        """
        Args:
            model: of the server.
            options: with the most drafts of the server, for which states are made.
            slots: of a seat.
            folder, num_bytes: see the attributes.
        """
        self.folder, self.num_bytes = folder, num_bytes
        self._model, self._options, self._slots = model, options, slots
        self._held: OrderedDict[str, Held] = OrderedDict()  # the last used one last
        self._busy: dict[str, Turn] = {}  # turns that go on; that of a deleted session is none of them
        self._lock = threading.RLock()
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[dict[str, Any]]:
        """All sessions, in memory or saved, by their names."""
        with self._lock:
            held = {name: self._described(name, each) for name, each in self._held.items()}
        saved = () if self.folder is None else self.folder.glob(f"*{ENDING}")
        for path in saved:
            name = path.name.removesuffix(ENDING)
            held.setdefault(name, {"id": name, "in_memory": False, "saved": True})
        return [held[name] for name in sorted(held)]

    def describe(self, name: str) -> dict[str, Any]:
        """What a client may know of a session.

        Raises:
            ApiError: there is none by this name.
        """
        with self._lock:
            self.get(name)
            return self._described(name, self._held[name])

    def _described(self, name: str, held: Held) -> dict[str, Any]:
        session, memory = held.session, held.session.memory
        return {
            "id": name,
            "in_memory": True,
            "saved": self.folder is not None and self._path(name).exists(),
            "changed": held.changed,
            "tokens": len(session.conversation),
            "computed_tokens": 0 if memory is None else len(memory.tokens),
            "bytes": 0 if memory is None else memory.num_bytes,
            "turns": [list(turn) for turn in session.turns],
        }

    def get(self, name: str) -> Session:
        """A session, read from its file if it is not in memory.

        Raises:
            ApiError: there is none, or its file is damaged or of another model.
        """
        with self._lock:
            if (held := self._held.get(name)) is not None:
                self._put(name, held.session, held.changed)
                return held.session
            path = self._path(name) if self.folder is not None else None
            if path is None or not path.is_file():
                raise ApiError(404, f"there is no session {name!r}", param="session", code="session_not_found")
            session = self._read(name, path)
            self._put(name, session, changed=False)
            return session

    def _read(self, name: str, path: Path) -> Session:
        try:
            session = self._model.load_session(path)
        except (SpecjaxError, OSError) as error:
            message = str(error).replace(str(path), name).replace(str(self._model.path), self._model.path.name)
            raise ApiError(409, f"the session {name!r} cannot be read: {message}", code="session_unreadable") from None
        new = self._new()
        fits = _made_for(session) == _made_for(new) and session.slots <= self._slots
        # States that were made for other drafts or caches do not fit the server's rows: the text is computed again.
        return replace(new, **_text_of(session), memory=session.memory if fits else None)

    def create(self, name: str) -> Session:
        """A session without tokens.

        Raises:
            ApiError: the name is taken, or cannot be one.
        """
        with self._lock:
            path = self._path(name)
            if name in self._held or (self.folder is not None and path.exists()):
                raise ApiError(409, f"there is a session {name!r} already; choose another id", code="session_exists")
            session = self._new()
            self._put(name, session, changed=True)
            return session

    def fork(self, name: str, other: str) -> None:
        """Let a session be known by another name too; from there on they part.

        Raises:
            ApiError: there is none, or the other name is taken.
        """
        with self._lock:
            session = self.get(name)
            self.create(other)
            self._put(other, session, changed=True)

    def rewind(self, name: str, length: int) -> None:
        """Shorten a session to the first `length` tokens of its conversation.

        Raises:
            ApiError: there is none, a turn of it goes on, or it does not have so many tokens.
        """
        with self._lock:
            session = self.get(name)
            self._check_free(name)
            whole = len(session.conversation)
            if not 0 <= length <= whole:
                raise refused(f"the session has {whole} tokens; give 0 to {whole} of them to keep", param="length")
            turns = turns_until(session.turns, length)
            self._put(name, replace(session, conversation=session.conversation[:length], turns=turns), changed=True)

    def save(self, name: str) -> int:
        """Write a session to its file, whole or not at all. Returns the bytes of the file.

        Nothing else happens to sessions meanwhile: the file would be that of one that is deleted, or older than another
        that was written.

        Raises:
            ApiError: there is none, no folder was given, or the disk is full.
        """
        if self.folder is None:
            raise refused("this server keeps no sessions on disk; start it with --sessions FOLDER")
        with self._lock:
            if not self._written(name, self.get(name)):
                raise ApiError(507, f"the session {name!r} cannot be written to disk", code="not_saved")
            if (held := self._held.get(name)) is not None:
                self._held[name] = replace(held, changed=False)
            return self._path(name).stat().st_size

    def _written(self, name: str, session: Session) -> bool:
        """Write a session to its file; whether that went well."""
        try:
            self._model.save_session(session, self._path(name))
        except (OSError, CheckpointError):
            return False
        return True

    def restore(self, name: str) -> None:
        """Read a session from its file again; what it has in memory is given up.

        Raises:
            ApiError: it was not saved, a turn of it goes on, or its file is damaged or of another model.
        """
        with self._lock:
            path = self._path(name)
            if self.folder is None or not path.is_file():
                raise ApiError(404, f"the session {name!r} was not saved", param="session", code="session_not_found")
            self._check_free(name)
            self._put(name, self._read(name, path), changed=False)

    def delete(self, name: str) -> None:
        """Forget a session, its file too. What a turn that goes on brings is lost.

        Raises:
            ApiError: there is none.
        """
        with self._lock:
            path = self._path(name)
            known = self._held.pop(name, None) is not None
            self._busy.pop(name, None)
            if self.folder is not None and path.exists():
                path.unlink()
                known = True
            if not known:
                raise ApiError(404, f"there is no session {name!r}", code="session_not_found")

    def begin(self, name: str) -> Turn:
        """Begin a turn; `end` or `give_up` ends it.

        Raises:
            ApiError: there is no such session, or a turn of it goes on.
        """
        with self._lock:
            session = self.get(name)
            self._check_free(name)
            turn = self._busy[name] = Turn(name, session)
            return turn

    def _check_free(self, name: str) -> None:
        if name in self._busy:
            raise ApiError(409, f"a turn of the session {name!r} goes on; wait for its end", code="session_busy")

    def give_up(self, turn: Turn) -> None:
        """End a turn without a trace. One that has ended stays as it is."""
        with self._lock:
            if self._busy.get(turn.name) is turn:
                del self._busy[turn.name]

    def end(self, turn: Turn, reply: Sequence[int]) -> None:
        """Put the session after a turn in the place of the one before, unless that was deleted meanwhile."""
        session = turn.session
        conversation = (*turn.prompt, *reply)
        turns = turns_until(session.turns, common_prefix(session.conversation, turn.prompt))
        after = replace(
            session,
            conversation=conversation,
            turns=with_turn(turns, len(turn.prompt), len(conversation)),
            memory=None if turn.memory is None else _thrifty(turn.memory, session.point_bytes),
        )
        with self._lock:
            if self._busy.get(turn.name) is turn:
                self._put(turn.name, after, changed=True)
                del self._busy[turn.name]

    def _new(self) -> Session:
        return self._model.session(self._options, slots=self._slots)

    def _path(self, name: str) -> Path:
        """
        Raises:
            ApiError: this is no name.
        """
        if not NAME.fullmatch(name):
            raise refused(
                f"{name[:80]!r} is no id of a session; give 1 to 64 letters, digits, '-', '_' and '.', no '.' first",
                param="session",
            )
        return (self.folder or Path()) / f"{name}{ENDING}"

    def _put(self, name: str, session: Session, changed: bool) -> None:
        self._held[name] = Held(session, changed, time.monotonic())
        self._held.move_to_end(name)
        self._make_room(name)

    def _make_room(self, last: str) -> None:
        """Give up states that were not used for long, until the budget is kept; that of `last` stays."""
        for name, held in list(self._held.items()):
            if self._num_bytes() <= self.num_bytes:
                return
            if name == last or held.session.memory is None:
                continue
            if self.folder is not None and (not held.changed or self._written(name, held.session)):
                del self._held[name]
            else:
                self._held[name] = replace(held, session=replace(held.session, memory=None))

    def _num_bytes(self) -> int:
        """Bytes of all states. Forks share theirs, which count once."""
        memories = {id(held.session.memory): held.session.memory for held in self._held.values()}
        return sum(memory.num_bytes for memory in memories.values() if memory is not None)


@dataclass
class Turn:
    """A turn of a session that goes on.

    Attributes:
        name, session: whose turn it is.
        prompt: the whole conversation up to the reply, once it is known.
        memory: the last that was computed.
    """

    name: str
    session: Session
    prompt: tuple[int, ...] = ()
    memory: Memory | None = None

    def keep(self, memory: Memory) -> None:
        """Take in what has been computed; called on the engine's thread."""
        self.memory = memory


def _thrifty(memory: Memory, point_bytes: int) -> Memory:
    return replace(memory, points=within_budget(memory.points, point_bytes))


def _made_for(session: Session) -> tuple:
    """What a state depends on."""
    decoder = session.decoder
    return decoder.drafter, decoder.max_drafts, decoder.rollback, decoder.kv_types


def _text_of(session: Session) -> dict[str, Any]:
    return {"conversation": session.conversation, "turns": session.turns, "name": session.name}
