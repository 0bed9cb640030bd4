"""What becomes known of a text, piece by piece, on its way from the engine's thread to a client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from specjax.decoding.stats import DecodeStats
from specjax.runtime.request import FinishReason, TokenLogprobs, Update


class Made(NamedTuple):
    """How a token was made.

    Attributes:
        token: its id.
        place: which draft of its round it was, from 1 on; 0 if the model chose it itself.
        rejected: drafts of its round that did not stand. The first of them stood in this token's place.
    """

    token: int
    place: int
    rejected: tuple[int, ...] = ()


@dataclass(frozen=True)
class End:
    """The last that becomes known of a text.

    Attributes:
        reason: why it ended.
        prompt_tokens, reused: tokens of its prompt, and how many of them were not computed again.
        tokens: how many it has.
        stats: what drafts brought.
        finite: whether the model's logits were numbers.
    """

    reason: FinishReason
    prompt_tokens: int
    reused: int
    tokens: int
    stats: DecodeStats
    finite: bool


@dataclass(frozen=True)
class Part:
    """Tokens that became known together.

    Attributes:
        text: what they add to the text; characters that are not whole, or may begin a stop string, come later.
        tokens: their ids.
        logprobs: at each of them, if recorded.
        made: how each of them was made, if asked for.
        end: there with the last part only.
    """

    text: str
    tokens: Sequence[int]
    logprobs: Sequence[TokenLogprobs] = ()
    made: Sequence[Made] = ()
    end: End | None = field(default=None)


def made_of(update: Update) -> list[Made]:
    """How each token of an update was made."""
    if update.record is None:  # the first token, which the prompt brings
        return [Made(token, 0) for token in update.tokens]
    rounds: Any = update.record.rounds
    made: list[Made] = []
    for index in range(int(update.record.n_rounds)):
        numbers = (rounds.n_emitted, rounds.n_accepted, rounds.n_drafted)
        n_emitted, n_accepted, n_drafted = (int(each[index, update.row]) for each in numbers)
        tokens = np.asarray(rounds.tokens[index, update.row]).tolist()
        drafts = np.asarray(rounds.drafts[index, update.row]).tolist()
        for place in range(n_emitted):
            drafted = place < n_accepted
            rejected = () if drafted else tuple(drafts[n_accepted:n_drafted])
            made.append(Made(tokens[place], place + 1 if drafted else 0, rejected))
    return made[: len(update.tokens)]
