"""What happens when a conversation outgrows its slots. `specjax.state.shift` moves the arrays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from specjax.decoding.decoder import Decoder
from specjax.decoding.shift import cannot_shift
from specjax.errors import SpecjaxError
from specjax.state import Cut

WhenFull = Literal["error", "shift"]

DEFAULT_KEEP = 4
"""How many tokens at the start always stay. Heads that find nothing to read attend to the first tokens. If none of
these is left, the text degenerates. Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks",
arXiv 2309.17453, which finds four enough.
"""


def contiguous_from(cuts: Iterable[Cut]) -> int:
    """The position, after these cuts one after the other, from which on no token was dropped in between."""
    position = 0
    for cut in cuts:
        position = max(cut.keep, position - cut.drop)
    return position


class Dropped(NamedTuple):
    """A cut of a conversation.

    Attributes:
        cut: which tokens were dropped from those that the state held.
        at: how many tokens of the conversation had been fed by then, including those that cuts before had dropped.
    """

    cut: Cut
    at: int


def with_cut(drops: tuple[Dropped, ...], cut: Cut, held: int) -> tuple[Dropped, ...]:
    """The cuts so far, and one of a state that held so many tokens."""
    return (*drops, Dropped(cut, held + sum(each.cut.drop for each in drops)))


def check_can_shift(decoder: Decoder) -> None:
    """Raise `SpecjaxError` if a state of these models cannot drop tokens."""
    reason = cannot_shift(decoder)
    if reason is not None:
        raise SpecjaxError(f"this model cannot drop the oldest tokens of a conversation: {reason}")
