"""What an engine keeps of its texts, and what new ones begin from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import new_sequences
from specjax.mesh.shards import MODEL, lying, on_shards
from specjax.models.protocol import Params
from specjax.runtime.memory import CutLimits, Memory, ReturnPoint
from specjax.runtime.pieces import longest_piece, width_of
from specjax.runtime.prefixes import PrefixCache
from specjax.runtime.request import Job
from specjax.state import SequenceState, keep_rows, put_rows


class Texts:
    """Puts states into rows of a running state, and keeps copies of what rows hold.

    Attributes:
        prefixes: texts that are kept for prompts that start like them.
    """

    def __init__(self, decoder: Decoder, params: Params, seats: int, slots: int, prefixes: PrefixCache) -> None:
        """
        Args:
            decoder, params, seats, slots: the engine's.
            prefixes: see the attribute.
        """
        self.prefixes = prefixes
        self._decoder, self._params, self._seats, self._slots = decoder, params, seats, slots
        self._used: set[int] = set()

    @cached_property
    def empty(self) -> SequenceState:
        """The state before a text, of one row. It has one slot, because what an empty cache holds is never read."""
        return new_sequences(self._decoder, self._params, 1, 1)

    @cached_property
    def _limits(self) -> CutLimits:
        return CutLimits.of(self._decoder, self._slots)

    def begin(self, sequences: SequenceState, row: int, job: Job, waiting: Sequence[Job]) -> SequenceState:
        """The sequences, which are consumed, with what a request starts from in its row.

        Args:
            sequences: of the running state.
            row, job: the request.
            waiting: those that come next; prompts are fed with pauses where others may go on from.
        """
        request, used = job.request, row in self._used
        self._used.add(row)
        longest = longest_piece(self._decoder, sequences)
        job.stops = self.prefixes.stops(request.prompt, [each.request.prompt for each in waiting], longest)
        if request.start is not None:
            job.held = job.reused = request.start.length
            if self._seats == 1:
                return request.start.state
            state = request.start.state
        elif (found := self.prefixes.find(request.prompt, request.memory)) is not None:
            job.held = job.reused = len(found.tokens)
            job.points = list(found.points)
            state = found.state
        elif used:
            state = self.empty
        else:
            return sequences
        return put_rows(sequences, state, jnp.asarray([row], jnp.int32))

    def pause(self, sequences: SequenceState, fed: Mapping[int, tuple[int, Job]], logits: Float[Array, "P V"]) -> None:
        """Keep what is needed to come back to the ends of prompts, and to the pauses that feeding them has reached.

        Args:
            sequences: of the running state.
            fed: the row and the job of each column that was fed.
            logits: after what was fed last, of each column.
        """
        for column, (row, job) in fed.items():
            if self.keeps(job) and (job.fed or job.held in job.stops):
                parts = keep_rows(sequences, jnp.asarray([row]))
                job.points.append(ReturnPoint(job.held, parts, _row(logits, np.int32(column)) if job.fed else None))

    def remember(
        self, sequences: SequenceState, row: int, job: Job, tokens: tuple[int, ...], *, exact: bool = True
    ) -> None:
        """Keep a text for prompts that start like it, and for who asked for it.

        Args:
            sequences: of the running state, in which the drafter has seen everything.
            row, job: whose text it is.
            tokens: what the row holds.
            exact: whether it holds nothing else. A row that has gone on is kept only for who asked for it.
        """
        if not self.keeps(job) or job.cuts or not (exact or job.request.keep):
            return
        held = len(tokens) if exact else int(np.asarray(sequences.length)[row])
        if exact and (not job.points or job.points[-1].length < held):
            job.points.append(ReturnPoint(held, keep_rows(sequences, jnp.asarray([row]))))
        limits = self._limits.after_writing(held)
        memory = Memory.of_row(sequences, row, self._slots, tokens, limits, tuple(job.points), held)
        self.prefixes.keep(memory)
        if job.request.keep is not None:
            job.request.keep(memory)

    def keeps(self, job: Job) -> bool:
        """Whether anything is kept of its text."""
        return job.request.start is None and bool(job.request.keep or self.prefixes.num_bytes)

    def build(self, logits: Float[Array, "P V"]) -> None:
        """Build the programs that keep logits like these."""
        jax.block_until_ready(_stacked([_row(logits, np.int32(0))] * len(logits)))

    def known_logits(self, jobs: Sequence[Job]) -> Float[Array, "P V"]:
        """The logits after the prompts of jobs that began at their ends, P as `width_of` has it."""
        known = [job.points[-1].logits for job in jobs]
        rows = [each for each in known if each is not None]
        return _stacked([*rows, *rows[:1] * (width_of(len(rows), self._seats) - len(rows))])


@jax.jit
def _row(logits: Float[Array, "P V"], column: Int[Array, ""]) -> Float[Array, "V"]:
    return on_shards(lambda parts, *of: of[0][of[1]], logits, column, out=lambda *_: lying(MODEL))


@jax.jit
def _stacked(rows: Sequence[Float[Array, "V"]]) -> Float[Array, "P V"]:
    return on_shards(lambda parts, rows: jnp.stack(rows), rows, out=lambda rows: lying(None, MODEL))
