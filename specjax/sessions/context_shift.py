"""Which tokens go when a conversation outgrows its slots: plain counting. `specjax.decoding.shift` moves the arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax

from specjax.decoding.decoder import Decoder
from specjax.state import Ring

WhenFull = Literal["error", "shift"]

DEFAULT_KEEP = 4
"""Tokens at the start that always stay. Without any, attention has nowhere to go when it has nothing to read, and what
is written degenerates. Source: Xiao et al., "Efficient Streaming Language Models with Attention Sinks", arXiv
2309.17453, which finds four enough."""


class Cut(NamedTuple):
    """A shift of one sequence: `drop` tokens after the first `keep` go."""

    keep: int
    drop: int

    def of(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """What is left of the tokens."""
        return (*tokens[: self.keep], *tokens[self.keep + self.drop :])


def junction(cuts: Iterable[Cut]) -> int:
    """After these cuts, one after the other: the position of the first token before which none was dropped any more."""
    position = 0
    for cut in cuts:
        position = max(cut.keep, position - cut.drop)
    return position


@dataclass(frozen=True)
class Reach:
    """How far back the caches of a sequence reach.

    Attributes:
        rows: R, tokens of a round: so many at the end may be fed again or for the first time.
        rings: buffers that can go round.
        floor: the shortest length, but for 0, that the sequence can be taken back to; 0 before a ring has gone round.
    """

    rows: int
    rings: tuple[Ring, ...]
    floor: int = 0

    @classmethod
    def of(cls, decoder: Decoder, slots: int) -> Reach:
        """Of an empty sequence with so many slots."""
        state = jax.eval_shape(lambda: decoder.init_state(1, slots))
        return cls(decoder.rows, tuple(sorted(ring for ring in state.rings if ring.slots < slots)))

    @property
    def least_left(self) -> int:
        """Tokens that must be left after the dropped ones: what rows that are still to be fed look back on."""
        return self.rows + (max(ring.window for ring in self.rings) if self.floor else 0)

    def written(self, length: int) -> Reach:
        """After the sequence has held so many tokens."""
        end = length + self.rows  # drafts that did not stand among them
        return replace(self, floor=max([self.floor, *(ring.floor(end) for ring in self.rings)]))

    def shifted(self, cut: Cut) -> Reach:
        """After a cut: a ring that has gone round has nothing of what was kept at the start."""
        window = max((ring.window for ring in self.rings), default=0)
        return replace(self, floor=max(cut.keep + window, self.floor - cut.drop) if self.floor else 0)

    def oldest(self, length: int, keep: int, *, at_least: int = 1) -> Cut | None:
        """The older half of what follows the first `keep` tokens, as llama.cpp drops it.

        It is more if it is not `at_least` so much, and less if too little would be left; None if both cannot be.
        """
        most = length - keep - self.least_left
        drop = max(at_least, min((length - keep) // 2, most))
        return Cut(keep, drop) if drop <= most else None
