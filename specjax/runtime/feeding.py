"""Feeding tokens that are known: to go on from them, or to read what the model makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.decoding.decoder import Decoder
from specjax.decoding.seats import feed_rows
from specjax.mesh.hosts import fetched
from specjax.mesh.shards import MODEL, REPLICATED, lying, on_shards
from specjax.models.protocol import FeatureRequest, Params, Rows, Target, TargetOutput
from specjax.runtime.memory import Memory, ReturnPoint
from specjax.runtime.pieces import SMALL_SHAPES, Shape, piece_size, shapes_of_pieces
from specjax.state import SequenceState


def pieces_of(
    tokens: Sequence[int], shapes: Sequence[Shape] = SMALL_SHAPES
) -> Iterator[tuple[Int[np.ndarray, "1 T"], Int[np.ndarray, "1"]]]:
    """The tokens in pieces of the sizes that prompts are fed in, padded, and how many of each count."""
    begin = 0
    while begin < len(tokens):
        size = piece_size(len(tokens) - begin, shapes)
        piece = tokens[begin : begin + size]
        padded = np.zeros((1, size), np.int32)
        padded[0, : len(piece)] = piece
        yield padded, np.array([len(piece)], np.int32)
        begin += len(piece)


def feed(
    decoder: Decoder, params: Params, state: SequenceState, tokens: Sequence[int]
) -> tuple[SequenceState, Float[Array, "V"]]:
    """Feed tokens to the state of one sequence, which is consumed, as prompts are fed.

    Returns:
        The state after them, and the logits of the last one.

    Raises:
        ValueError: there are no tokens.
    """
    if not len(tokens):
        raise ValueError("there are no tokens to feed; give at least one")
    for piece, n_valid in pieces_of(tokens, shapes_of_pieces(decoder, state)):
        state, logits = feed_rows(decoder.target, decoder.drafter, params, state, None, piece, n_valid)
    return state, logits[0]


def extended(memory: Memory, decoder: Decoder, params: Params, tokens: Sequence[int]) -> Memory:
    """A memory, which is consumed, with more tokens fed to it. One can come back to their end."""
    if not len(tokens):
        return memory
    state, _ = feed(decoder, params, memory.state, tokens)
    text = (*memory.tokens, *tokens)
    points = (*memory.points, ReturnPoint.of(state, len(text)))
    return Memory(text, state, memory.limits.after_writing(len(text)), points)


def read(
    target: Target,
    params: Params,
    state: SequenceState,
    tokens: Sequence[int],
    *,
    request: FeatureRequest = FeatureRequest(),
    rows: Rows,
) -> Iterator[tuple[int, TargetOutput]]:
    """Feed tokens to the state of one sequence, which is consumed, and yield what the target makes of them.

    The drafter is told nothing.

    Yields:
        For each piece, how many tokens it has, and the output, whose rows beyond these mean nothing.
    """
    state = replace(state, drafter=None)
    for piece, n_valid in pieces_of(tokens):
        output, state = _read_piece(target, params, state, piece, n_valid, request, rows)
        yield int(n_valid[0]), output


def read_logits(
    target: Target, params: Params, state: SequenceState, tokens: Sequence[int]
) -> Float[np.ndarray, "T V"]:
    """The logits after each of the tokens, float32 and on the host; see `read`."""
    rows = []
    for count, output in read(target, params, state, tokens, rows="all"):
        assert output.logits is not None
        rows.append(fetched(output.logits)[0, :count, : target.vocab_size].astype(np.float32))
    return np.concatenate(rows)


@partial(jax.jit, static_argnames=("target", "request", "rows"), donate_argnames="state")
def _read_piece(
    target: Target,
    params: Params,
    state: SequenceState,
    tokens: Int[Array, "1 T"],
    n_valid: Int[Array, "1"],
    request: FeatureRequest,
    rows: Rows,
) -> tuple[TargetOutput, SequenceState]:

    def run(parts: int, params: Params, state: SequenceState, tokens: Array, n_valid: Array) -> tuple:
        return target.shard(parts).extend(params, tokens, n_valid, state, request=request, rows=rows)

    logits: Any = None if rows == "none" else lying(None, None, MODEL)
    return on_shards(
        run, params, state, tokens, n_valid, out=lambda params, state, *_: (TargetOutput(logits, REPLICATED), state)
    )
