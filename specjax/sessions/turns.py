"""Who said what: the parts of a conversation, as lengths. They hold no states, so they keep no memory alive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Turn(NamedTuple):
    """A turn of a conversation. It begins where the turn before it ends.

    Attributes:
        prompt: how long the conversation was with what was said to the model.
        end: how long it was with the model's reply.
    """

    prompt: int
    end: int


class Stretch(NamedTuple):
    """Tokens of a conversation from one side."""

    begin: int
    end: int
    reply: bool


def turns_until(turns: Sequence[Turn], length: int) -> tuple[Turn, ...]:
    """The turns of the first `length` tokens."""
    begins = (0, *(turn.end for turn in turns))
    return tuple(
        Turn(min(turn.prompt, length), min(turn.end, length))
        for begin, turn in zip(begins, turns, strict=False)
        if begin < length
    )


def with_turn(turns: tuple[Turn, ...], prompt: int, end: int) -> tuple[Turn, ...]:
    """The turns with one more: the prompt reaches up to `prompt`, the reply up to `end`.

    A turn that has no reply yet goes on, and so does a reply after which nothing was said.
    """
    last = turns[-1] if turns else Turn(0, 0)
    if prompt == last.end:
        return (*turns[:-1], Turn(last.prompt, end)) if turns else ()
    if last.prompt == last.end:
        turns = turns[:-1]
    return (*turns, Turn(prompt, end))


def stretches(turns: Sequence[Turn], begin: int, end: int) -> Iterator[Stretch]:
    """The tokens from `begin` to `end` by who said them, in order."""
    last = 0
    for turn in turns:
        for first, after, reply in ((last, turn.prompt, False), (turn.prompt, turn.end, True)):
            if max(first, begin) < min(after, end):
                yield Stretch(max(first, begin), min(after, end), reply)
        last = turn.end
