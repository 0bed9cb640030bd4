"""The fast transform across equally shaped pieces of a vector."""

from collections.abc import Sequence

from jax import Array


def butterflies(pieces: Sequence[Array]) -> list[Array]:
    """Piece i of the result is the sum of all pieces j with the sign of entry (i, j) of H; a power of two of them."""
    pieces = list(pieces)
    half = 1
    while half < len(pieces):
        for first in range(0, len(pieces), 2 * half):
            for i in range(first, first + half):
                pieces[i], pieces[i + half] = pieces[i] + pieces[i + half], pieces[i] - pieces[i + half]
        half *= 2
    return pieces
