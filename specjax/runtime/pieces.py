"""Pieces of prompts: what the rows of a running state are fed next, in arrays of few sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from specjax.decoding.decoder import LONGEST_CHUNK
from specjax.runtime.request import Job

PIECE_SIZES = (16, 64, LONGEST_CHUNK)
"""Tokens that pieces are padded to. Each size is compiled once, and hidden states of a longer prompt never exist at
once."""


def piece_size(left: int) -> int:
    """T, what the next piece is padded to when so many tokens are left: the least size that holds them all, or most."""
    return next((size for size in PIECE_SIZES if size >= left), PIECE_SIZES[-1])


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
    def next_of(cls, feeding: Mapping[int, Job], seats: int) -> Piece:
        """The next piece for these jobs, given by their seats. Their `held` counts it from now on."""
        size = piece_size(max(job.next_stop - job.held for job in feeding.values()))
        piece = cls.empty(seats, width_of(len(feeding), seats), size)
        columns = {}
        for index, (seat, job) in enumerate(feeding.items()):
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


def widths_up_to(seats: int) -> list[int]:
    """What `width_of` can come to."""
    return sorted({width_of(count, seats) for count in range(1, seats + 1)})


def width_of(count: int, seats: int) -> int:
    """P, columns for so many sequences: a power of four, so that few programs are compiled, or all seats."""
    width = 1
    while width < count:
        width *= 4
    return min(width, seats)
