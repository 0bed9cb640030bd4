"""Pieces of prompts: what the rows of a running state are fed next, in arrays of few sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice, product

import jax
import numpy as np
from jaxtyping import Int

from pallas_kernels.override import current_platform
from specjax.decoding.decoder import LONGEST_CHUNK, Decoder
from specjax.runtime.request import Job
from specjax.state import SequenceState

PIECE_SIZES = (16, 64, LONGEST_CHUNK)
"""Tokens that pieces are padded to. Each size is compiled once, and hidden states of a longer prompt never exist at
once."""


CALL_TOKENS = {"cpu": 32}
"""Tokens that take as long as starting a call and reading the weights for it. A CPU computes so few in this time that
short pieces pay."""

ON_ACCELERATORS = 512
"""The same where the platform is another: there, hundreds of tokens come for free."""


LARGE_PIECE = {"gpu": 1024}
"""T of a further piece, of one prompt, by platform. There, a call of fewer tokens takes most of its time to read
matrices and to decode them."""
MOST_PAIRS = 1 << 23
"""Tokens times slots up to which the large piece is made: attention may hold a number for each, and for every head.
Pieces of 256 tokens have as many with 32,768 slots."""

Shape = tuple[int, int]
"""P and T of a piece."""
SMALL_SHAPES = tuple((1, size) for size in PIECE_SIZES)
"""Of the pieces of one prompt that are small enough for logits of every token."""


def shapes_of_pieces(decoder: Decoder, state: SequenceState) -> list[Shape]:
    """The pieces that a state of the decoder can be fed; of its arrays, shapes will do."""
    shapes = product(widths_up_to(state.length.shape[0]), PIECE_SIZES)
    return list(dict.fromkeys([*shapes, (1, longest_piece(decoder, state))]))


def longest_piece(decoder: Decoder, state: SequenceState) -> int:
    """T of the longest piece of one prompt that the state can be fed."""
    large, slots = LARGE_PIECE.get(current_platform(), 0), state.limit or 1
    if large and large * slots <= MOST_PAIRS and _can_be_fed(decoder, slots, large):
        return large
    return PIECE_SIZES[-1]


@lru_cache(maxsize=64)
def _can_be_fed(decoder: Decoder, slots: int, tokens: int) -> bool:
    """Whether states, which are made for calls of LONGEST_CHUNK tokens, can be fed more: rings cannot."""
    usual, longer = (
        jax.eval_shape(partial(decoder.init_state, 1, slots, chunk=chunk)) for chunk in (LONGEST_CHUNK, tokens)
    )
    return jax.tree.leaves(usual) == jax.tree.leaves(longer)


def piece_size(left: int, shapes: Sequence[Shape] = SMALL_SHAPES) -> int:
    """T, what the next piece of one prompt is padded to when so many tokens are left."""
    return _densest([left], [(width, size) for width, size in shapes if width == 1])[1]


@dataclass(frozen=True)
class Piece:
    """What is fed in one call.

    Attributes:
        rows: where the sequences sit, `seats` or more for columns without one; None means all rows in order.
        tokens, n_valid: the tokens, and how many of each column count.
        columns: the seat and the job of each column that has one.
    """

    rows: Int[np.ndarray, "P"] | None
    tokens: Int[np.ndarray, "P T"]
    n_valid: Int[np.ndarray, "P"]
    columns: Mapping[int, tuple[int, Job]]

    @classmethod
    def empty(cls, seats: int, width: int, size: int) -> Piece:
        """A piece without tokens, in P = `width` columns."""
        rows = None if width == seats else np.full(width, seats, np.int32)
        return cls(rows, np.zeros((width, size), np.int32), np.zeros(width, np.int32), {})

    @classmethod
    def next_of(cls, feeding: Mapping[int, Job], decoder: Decoder, state: SequenceState) -> Piece:
        """The next piece, for the first of these jobs, which are given by their seats in order of their turns. Their
        `held` counts it from now on.
        """
        lefts, seats = [job.next_stop - job.held for job in feeding.values()], state.length.shape[0]
        width, size = _densest(lefts, shapes_of_pieces(decoder, state))
        piece = cls.empty(seats, width, size)
        columns = {}
        for index, (seat, job) in enumerate(islice(feeding.items(), width)):
            column = seat if piece.rows is None else index
            tokens = job.request.prompt[job.held : min(job.held + size, job.next_stop)]
            piece.tokens[column, : len(tokens)], piece.n_valid[column] = tokens, len(tokens)
            if piece.rows is not None:
                piece.rows[column] = seat
            job.held += len(tokens)
            columns[column] = seat, job
        return cls(piece.rows, piece.tokens, piece.n_valid, columns)

    @property
    def complete(self) -> dict[int, tuple[int, Job]]:
        """The columns whose prompts end in this piece."""
        return {column: (seat, job) for column, (seat, job) in self.columns.items() if job.fed}


def _densest(lefts: Sequence[int], shapes: Sequence[Shape]) -> Shape:
    """The piece that feeds most tokens in its time, of prompts that have so many tokens left each.

    Padding takes the time of tokens. So a few small pieces can be faster than a large one that is mostly padding, as
    long as a call costs little.
    """
    call = CALL_TOKENS.get(current_platform(), ON_ACCELERATORS)

    def density(shape: Shape) -> float:
        width, size = shape
        return sum(min(left, size) for left in lefts[:width]) / (call + width * size)

    return max(shapes, key=density)


def widths_up_to(seats: int) -> list[int]:
    """What `width_of` can come to."""
    return sorted({width_of(count, seats) for count in range(1, seats + 1)})


def width_of(count: int, seats: int) -> int:
    """P, columns for so many sequences: a power of four, so that few programs are compiled, or all seats."""
    width = 1
    while width < count:
        width *= 4
    return min(width, seats)
