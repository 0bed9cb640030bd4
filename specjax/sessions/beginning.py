"""Where a text begins that goes on from a session: how much of it the state holds, and what has been dropped of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specjax.errors import PromptError, SpecjaxError
from specjax.runtime.memory import Memory, common_prefix
from specjax.runtime.prompts import check_prompts
from specjax.sessions.context_shift import Dropped, contiguous_from, with_cut
from specjax.state import Cut

if TYPE_CHECKING:
    from specjax.sessions.session import Session


@dataclass(frozen=True)
class Reuse:
    """How many tokens a turn, or going back, took from the session before, and how many it computed.

    Attributes:
        shared: tokens at the start of the prompt that are equal to those the session has seen.
        reused: tokens that were not computed again. There are fewer than `shared` if the session has kept no state at
            that place, or has dropped tokens first.
        fed: tokens of the prompt that were computed.
    """

    shared: int
    reused: int
    fed: int


@dataclass(frozen=True)
class Beginning:
    """Where a text begins.

    Attributes:
        ids: the text without what was dropped.
        drops: the cuts that have been made of it.
        memory: as much of it as is not computed again; never its last token. It can be consumed.
        shared: see `Reuse`.
    """

    ids: tuple[int, ...]
    drops: tuple[Dropped, ...]
    memory: Memory
    shared: int

    @property
    def rest(self) -> tuple[int, ...]:
        """What is still to be fed; the last token is always in it."""
        return self.ids[len(self.memory.tokens) :]

    def reuse(self, fed: int) -> Reuse:
        """What is saved when so many tokens are fed."""
        return Reuse(self.shared, len(self.memory.tokens), fed)


def beginning(session: Session, given: tuple[int, ...]) -> Beginning:
    """Where a prompt begins, with room for a token after it.

    Raises:
        PromptError: see `Session.generate`.
    """
    ids, drops = _without_dropped(session, given)
    memory, shared = resumed(session, session.memory, ids), common_prefix(session.tokens, ids)
    if len(ids) >= session.slots:
        cut, held = _room_for(session, ids, memory), len(memory.tokens)
        memory, ids, drops = memory.without(cut), cut.left_of(ids), with_cut(drops, cut, held)
    check_prompts(session.model.target, [ids])
    return Beginning(ids, drops, memory, shared)


def back(session: Session, given: tuple[int, ...], since: int) -> Beginning:
    """Where the first tokens of the conversation begin, as they stood before others came.

    Args:
        session: whose conversation it is.
        given: the first tokens.
        since: a drop counts if so many tokens, or fewer, had been fed by then.

    Raises:
        SpecjaxError: tokens were dropped before, and the state of that time is not to be had.
    """
    drops = tuple(dropped for dropped in session.drops if dropped.at <= since)
    ids = given
    for dropped in drops:
        ids = dropped.cut.left_of(ids)
    shared = common_prefix(session.tokens, ids)
    if not drops:
        unmoved = min((cut.keep for cut in session.cuts), default=len(ids))  # cuts move all other tokens
        return Beginning(ids, (), resumed(session, session.memory, ids[: unmoved + 1]), shared)
    memory = resumed(session, session.memory, ids)
    after_last = drops[-1].at - (len(given) - len(ids))
    if len(drops) < len(session.drops) or len(memory.tokens) < after_last:
        raise SpecjaxError(
            f"the session cannot go back to {len(given)} tokens: it dropped tokens when it had {drops[-1].at}, and has"
            f" no state from between; go back to {session.drops[0].at} tokens or fewer, which are computed again, or"
            " keep the earlier session: it is a value"
        )
    return Beginning(ids, drops, memory, shared)


def resumed(session: Session, memory: Memory | None, ids: tuple[int, ...]) -> Memory:
    """As much of a text as can be had without feeding it, its last token excepted. The state is a copy.

    Args:
        session: says what an empty state looks like.
        memory: what can be taken up, if anything.
        ids: the text without what was dropped.
    """
    if memory is not None and (point := memory.point_for(ids)) is not None:
        return memory.back_at(point)
    return Memory.empty(session.decoder, session.model.params, session.slots)


def _without_dropped(session: Session, given: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[Dropped, ...]]:
    """The prompt without the tokens that were dropped, and the cuts that dropped them. If the prompt does not continue
    the conversation, it is returned as it is, with no cuts.
    """
    dropped = sum(cut.drop for cut in session.cuts)
    if common_prefix(session.conversation, given) < contiguous_from(session.cuts) + dropped:
        return given, ()
    for cut in session.cuts:
        given = cut.left_of(given)
    return given, session.drops


def _room_for(session: Session, ids: tuple[int, ...], begin: Memory) -> Cut:
    """What of the beginning has to go, so that the prompt fits and a new token with it."""
    cut, held = None, len(begin.tokens)
    if session.when_full == "shift":
        cut = begin.limits.cut_of_oldest(held, session.keep, at_least=len(ids) - session.slots + 1)
    if cut is None:
        fewer = (
            f"; {held} of them are in its caches, and dropping of these cannot make room for the others"
            if session.when_full == "shift"
            else ""
        )
        raise PromptError(
            f"the prompt has {len(ids)} tokens, but the session has room for {session.slots}, of which a new token"
            f" needs one{fewer}; shorten the prompt, or open a session with more slots"
        )
    return cut
