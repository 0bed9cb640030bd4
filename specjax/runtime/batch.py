"""One batch of prompts through prefill and the decoding loop, as the host sees it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import ChunkRecord, decode, decode_chunk
from specjax.decoding.prefill import beside, chunks, prefill, prefill_chunk, start_decoding
from specjax.decoding.settings import Settings, stop_width_of
from specjax.decoding.shift import shift_context
from specjax.errors import PromptError
from specjax.models.protocol import Params, Target
from specjax.runtime.generation import FinishReason, Timings
from specjax.sessions.context_shift import Cut
from specjax.state import SequenceState

CAPACITY_STEP = 256
"""KV caches grow in steps of so many slots, so that prompts of similar length share a compiled program."""


def check_prompts(target: Target, prompts: Sequence[Sequence[int]], new_tokens: int = 1) -> None:
    """Raise `PromptError` for a prompt that is empty, leaves no room for new tokens, or has ids outside the vocabulary.

    Args:
        target: says how long its context is, and how large its vocabulary.
        prompts: token ids.
        new_tokens: how many the context must hold beside the prompt.
    """
    for index, prompt in enumerate(prompts):
        name = "the prompt" if len(prompts) == 1 else f"prompt {index}"
        if not len(prompt):
            raise PromptError(f"{name} is empty; give at least one token of text to continue")
        if len(prompt) + new_tokens > target.context_length:
            limit = f"must also hold {new_tokens} more" if new_tokens else "is shorter"
            raise PromptError(
                f"{name} has {len(prompt)} tokens; the model's context of {target.context_length} {limit}: shorten the"
                " prompt"
            )
        outside = [token for token in prompt if not 0 <= token < target.vocab_size]
        if outside:
            raise PromptError(
                f"{name} has token ids outside the vocabulary of {target.vocab_size} (0 to {target.vocab_size - 1}):"
                f" {outside[:10]}"
            )


def token_budget(target: Target, prompt: Sequence[int], max_tokens: int) -> int:
    """Tokens that a prompt's row may emit: `max_tokens`, or what the context has room for."""
    return min(max_tokens, target.context_length - len(prompt))


def cache_capacity(lengths: Iterable[int]) -> int:
    """Slots of KV caches in which sequences of these lengths fit."""
    return -(-max(lengths) // CAPACITY_STEP) * CAPACITY_STEP


def finish_reason(tokens: Sequence[int], max_tokens: int, budget: int, eos_ids: Sequence[int]) -> FinishReason | None:
    """Why a row that has emitted `tokens` emits no more; None if it goes on."""
    if tokens[-1] in eos_ids:
        return "eos"
    if len(tokens) < budget:
        return None
    return "length" if budget == max_tokens else "context"


@dataclass
class Emission:
    """Tokens that became known: the first of each row after prefill, then those of a chunk of rounds.

    Attributes:
        tokens: new tokens per row.
        margins: by how much the largest logit led the second one where they were chosen, per row, if recorded.
        record: the chunk, None for the first tokens.
    """

    tokens: list[list[int]]
    margins: list[list[float]] | None
    record: ChunkRecord | None


@dataclass
class Continuation:
    """A state that the prompts of a batch begin in.

    Attributes:
        state: consumed.
        done: the tokens of each prompt that it holds; less than the shortest prompt.
        slots: positions that it has room for.
        prefilled: called with the state after the prompts, which is consumed afterwards.
        when_full: what a row whose slots are full drops to go on; None: it ends.
        dropped: tokens that have been dropped from each prompt's text before.
    """

    state: SequenceState
    done: int
    slots: int
    prefilled: Callable[[SequenceState], None]
    when_full: Cut | None = None
    dropped: int = 0


@dataclass
class Batch:
    """Prompts being continued together.

    Attributes:
        decoder, params: the program and its weights.
        prompts: token ids, checked.
        max_tokens: tokens to emit per row at most, cut where the model's context ends.
        settings: what every row wants.
        sequence: the random stream of each row.
        rounds_per_chunk: rounds between looks of the host.
        compiled: the programs that have run before, shared by the batches of a model.
        continues: where the prompts begin; None for an empty state.
        timings: filled in as it runs.
        state: where the rows stand after the last round; set when `run` is exhausted.
        cuts: how often each row has dropped tokens to go on.
    """

    decoder: Decoder
    params: Params
    prompts: Sequence[Sequence[int]]
    max_tokens: int
    settings: Settings
    sequence: Sequence[int]
    rounds_per_chunk: int
    compiled: set[tuple] = field(default_factory=set)
    continues: Continuation | None = None
    timings: Timings = field(default_factory=Timings)
    state: DecodeState | None = None
    cuts: list[int] = field(init=False)

    def __post_init__(self) -> None:
        check_prompts(self.decoder.target, self.prompts)
        self.cuts = [0] * len(self.prompts)

    @property
    def budgets(self) -> list[int]:
        """Tokens that each row may emit."""
        if self.continues is not None and self.continues.when_full is not None:
            return [self.max_tokens] * len(self.prompts)
        budgets = [token_budget(self.decoder.target, prompt, self.max_tokens) for prompt in self.prompts]
        if self.continues is None:
            return budgets
        room = self.continues.slots
        return [min(budget, room - len(prompt)) for budget, prompt in zip(budgets, self.prompts, strict=True)]

    @property
    def capacity(self) -> int:
        """Slots of the KV caches."""
        if self.continues is not None:
            return self.continues.slots
        return cache_capacity(len(prompt) + budget for prompt, budget in zip(self.prompts, self.budgets, strict=True))

    def start(self) -> tuple[DecodeState, jax.Array | None]:
        """Compile what has not been compiled, then prefill and choose the first tokens.

        The logit margins of the first tokens come too, if they are recorded.
        """
        begin = time.perf_counter()
        continues = self.continues
        new = [prompt[continues.done :] for prompt in self.prompts] if continues else self.prompts
        self.warm_up({tokens.shape[1] for tokens, _ in chunks(new)})
        compiled = time.perf_counter()
        before = continues.state if continues else self.decoder.init_state(len(self.prompts), self.capacity)
        sequences, logits = prefill(self.decoder, self.params, before, new)
        if continues:
            continues.prefilled(sequences)
        state, record = start_decoding(
            self.decoder,
            sequences,
            logits,
            jnp.asarray(self.budgets, jnp.int32),
            self.decoder.settings([self.settings] * len(self.prompts)),
            jnp.asarray(self.sequence, jnp.int32),
            continues.dropped if continues else 0,
        )
        jax.block_until_ready(state.pending)
        self.timings.compile = compiled - begin
        self.timings.prefill = time.perf_counter() - compiled
        return state, record.margin

    def warm_up(self, chunk_sizes: set[int]) -> None:
        """Run the programs that have not run yet once, on a state of their own.

        `jax.jit` compiles at the first call, and XLA's CPU backend sets up kernels when a loop body first runs. Without
        this, that time would be charged to prefill and decoding.
        """
        decoder, batch = self.decoder, len(self.prompts)

        def first_time(*what: Any) -> bool:
            key = (decoder, batch, self.capacity, stop_width_of([self.settings]), *what)
            seen = key in self.compiled
            self.compiled.add(key)
            return not seen

        sizes = [size for size in sorted(chunk_sizes) if first_time("prefill", size)]
        new_loop = first_time("decode", self.rounds_per_chunk)
        longest = max(len(prompt) for prompt in self.prompts)
        may_shift = self.continues and self.continues.when_full and longest + self.max_tokens > self.capacity
        if may_shift and first_time("shift"):
            zero = jnp.zeros((batch,), jnp.int32)
            empty = beside(self.params, decoder.init_state(batch, self.capacity))
            jax.block_until_ready(self._shift(empty, zero, zero))
        if not sizes and not new_loop:
            return
        state = warm_up_prefill(decoder, self.params, batch, self.capacity, sizes, self.settings)
        if new_loop:
            jax.block_until_ready(decode_chunk(decoder, self.params, state, self.rounds_per_chunk))

    def run(self) -> Iterator[Emission]:
        """Emit tokens as they become known."""
        state, margins = self.start()
        first = np.asarray(state.pending)
        recorded = margins is not None
        first_margins = None if margins is None else np.asarray(margins).tolist()
        yield Emission([[int(token)] for token in first], first_margins, None)
        begin = time.perf_counter()
        emitted = np.ones(len(self.prompts), np.int32)
        going: DecodeState | None = state
        while going is not None:
            rounds = decode(self.decoder, self.params, going, rounds_per_chunk=self.rounds_per_chunk)
            while True:
                try:
                    record = next(rounds)
                except StopIteration as finished:
                    self.state = finished.value
                    break
                self.timings.decode = time.perf_counter() - begin
                tokens = rows_of(record, record.rounds.tokens)
                emitted += [len(row) for row in tokens]
                yield Emission(tokens, rows_of(record, record.rounds.margin) if recorded else None, record)
            going = self._make_room(emitted)

    def _make_room(self, emitted: np.ndarray) -> DecodeState | None:
        """Let rows that stopped for want of slots drop tokens; None if no row goes on."""
        state, cut = self.state, self.continues.when_full if self.continues else None
        if state is None or cut is None:
            return None
        left = self.max_tokens - emitted
        full = (left > 0) & ~np.isin(np.asarray(state.pending), self.settings.stop_tokens)
        if not full.any():
            return None
        self.cuts = [count + int(cuts) for count, cuts in zip(self.cuts, full, strict=True)]
        drop = jnp.asarray(np.where(full, cut.drop, 0), jnp.int32)
        sequences = self._shift(state.sequences, jnp.full_like(drop, cut.keep), drop)
        budget = jnp.asarray(np.where(full, left, 0), jnp.int32)
        return replace(
            state,
            sequences=sequences,
            budget=jnp.minimum(budget, self.capacity - sequences.length),
            dropped=state.dropped + drop,
        )

    def _shift(self, state: SequenceState, keep: jax.Array, drop: jax.Array) -> SequenceState:
        return shift_context(self.decoder.target, self.decoder.active_drafter, self.params, state, keep, drop)


def rows_of(record: ChunkRecord, values: Any) -> list[list]:
    """Per row of the batch, the entries of `values` [rounds, B, R] that belong to emitted tokens."""
    emitted = np.asarray(record.rounds.n_emitted)[: int(record.n_rounds)]
    values = np.asarray(values)
    return [
        [value for index, count in enumerate(emitted[:, row]) for value in values[index, row, :count].tolist()]
        for row in range(emitted.shape[1])
    ]


def warm_up_prefill(
    decoder: Decoder, params: Params, batch: int, capacity: int, chunk_sizes: Iterable[int], settings: Settings
) -> DecodeState:
    """Run the programs before the loop, on one token per row and chunk; the state that comes out has a round to go."""
    one = np.ones((batch,), np.int32)
    state = decoder.init_state(batch, capacity)
    logits = jnp.zeros((batch, decoder.target.vocab_size), jnp.float32)
    state, logits = beside(params, (state, logits))
    for size in chunk_sizes:
        tokens = np.zeros((batch, size), np.int32)
        state, logits = prefill_chunk(decoder.target, decoder.active_drafter, params, state, tokens, one, logits)
    rows = decoder.settings([settings] * batch)
    started, _ = start_decoding(decoder, state, logits, jnp.asarray(2 * one), rows, jnp.asarray(one))
    return started.replace(budget=jnp.ones_like(started.budget))  # also if the first token happens to end the text
