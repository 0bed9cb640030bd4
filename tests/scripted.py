"""A drafter that is right exactly as often as a script says, and a host-side loop around decoding programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.grammar import Constraint
from specjax.decoding.leaning import no_counts
from specjax.decoding.loop import ChunkRecord, decode_chunk
from specjax.decoding.record import RoundRecord
from specjax.decoding.seats import Newcomers, feed_rows, start_rows
from specjax.decoding.settings import DraftConfig, RowSettings, Settings
from specjax.models.protocol import Choice, ChooseDraft, KeepGoing, Params, Proposal
from specjax.models.qwen3_5 import Qwen35Config, Qwen35MTP
from specjax.state import SequenceState

CAPACITY = 384
PIECE = 64
HEAD = -1  # in a script: the head's own drafts


class Scripted:
    """Put before a drafter, replaces its drafts: its state is the real one, its accept counts are chosen by the test.

    Reads `params["script"]`: `tokens` [B, S], what plain decoding emits at each position, and `correct` [B, S], how
    many drafts of a round that starts with `length` committed tokens are right. The draft after them is wrong.
    """

    def propose(
        self,
        params: Params,
        pending: jax.Array,
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        rows, length = jnp.arange(pending.shape[0]), state.length
        correct = params["script"]["correct"][rows, length]

        def scripted(logits: jax.Array, position: jax.Array, tokens: Any = None, before: Any = None) -> Choice:
            choice = choose(logits, position, tokens, before)
            right = params["script"]["tokens"].at[rows, position].get(mode="clip")
            token = jnp.where(position - length - 1 < correct, right, (right + 1) % self.config.vocab_size)
            return choice._replace(token=jnp.where(correct == HEAD, choice.token, token))

        return super().propose(params, pending, state, num_drafts=num_drafts, choose=scripted, keep_going=keep_going)


@dataclass(frozen=True)
class ScriptedMTP(Scripted, Qwen35MTP):
    """The MTP head of Qwen3.5 with scripted drafts."""


def script(
    params: Params, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], correct: np.ndarray | int
) -> Params:
    """The parameters with a script for a `Scripted` drafter."""
    tokens = np.zeros((len(prompts), CAPACITY), np.int32)
    for row, (prompt, continuation) in enumerate(zip(prompts, continuations, strict=True)):
        whole = [*prompt, *continuation]
        tokens[row, : len(whole)] = whole
    correct = np.broadcast_to(np.asarray(correct, np.int32), tokens.shape)
    return {**params, "script": {"tokens": jnp.asarray(tokens), "correct": jnp.asarray(correct)}}


def feed(
    decoder: Decoder, params: Params, prompts: Sequence[Sequence[int]], *, padding: int = 0
) -> tuple[SequenceState, jax.Array]:
    """Prefill in pieces of one size, so that few programs are compiled. Rings have room for these and no more."""
    batch, longest = len(prompts), max(len(prompt) for prompt in prompts)
    state = decoder.init_state(batch, CAPACITY, chunk=PIECE)
    logits: Any = None
    for start in range(0, longest, PIECE):
        tokens, n_valid = np.full((batch, PIECE), padding, np.int32), np.zeros(batch, np.int32)
        for row, prompt in enumerate(prompts):
            piece = prompt[start : start + PIECE]
            tokens[row, : len(piece)], n_valid[row] = piece, len(piece)
        state, new = feed_rows(decoder.target, decoder.drafter, params, state, None, tokens, n_valid)
        logits = new if logits is None else jnp.where((n_valid > 0)[:, None], new, logits)
    return state, logits


def start(
    decoder: Decoder,
    sequences: SequenceState,
    logits: jax.Array,
    budget: jax.Array,
    settings: RowSettings,
    sequence: jax.Array,
    dropped: jax.Array | int = 0,
    constraint: Constraint | None = None,
) -> tuple[DecodeState, RoundRecord]:
    """Let every row decode after its prompt; the record is that of the first tokens, which `budget` counts."""
    batch, budget = len(budget), jnp.asarray(budget, jnp.int32)  # else `jnp.full` makes another program: a weak type
    pending, budgets, streak, stream, none = (np.zeros(batch, np.int32) for _ in range(5))
    own, held = (jax.tree.map(jnp.copy, each) for each in (settings, constraint))
    counts = None if settings.leaning is None else no_counts(batch, decoder.target.vocab_size)
    idle = DecodeState(sequences, pending, budgets, streak, np.zeros(batch, bool), stream, own, none, held, counts)
    grammars, said = None if constraint is None else constraint.rows, jax.tree.map(jnp.copy, counts)
    rows = np.arange(batch, dtype=np.int32)
    new = Newcomers(rows, settings, sequence, budget - 1, np.zeros(batch, np.int32) + dropped, grammars, said)
    state, record = start_rows(decoder, idle, logits, new)
    return state, jax.tree.map(lambda x: x[0] if isinstance(x, jax.core.Tracer) else np.asarray(x)[0], record.rounds)


@dataclass
class Run:
    """What a run emitted, the records of its rounds [rounds, B, ...], its chunks, and its last state."""

    tokens: list[list[int]]
    rounds: RoundRecord
    chunks: list[ChunkRecord]
    state: DecodeState


def run(
    decoder: Decoder,
    params: Params,
    prompts: Sequence[Sequence[int]],
    budgets: int | Sequence[int],
    *,
    sequence: Sequence[int] | None = None,
    rounds_per_chunk: int = 8,
    rows: Sequence[Settings] | None = None,
    **wants: Any,
) -> Run:
    """Prefill and decode until every row is finished; `budgets` counts the tokens that each row may emit.

    `rows` says what each row wants; or all rows want the same, given as fields of `Settings`. As many drafts are made
    as the program has room for unless something else is said.
    """
    batch = len(prompts)
    same = Settings(**({"draft": DraftConfig(n_max=decoder.max_drafts)} | wants))
    wanted = [same] * batch if rows is None else rows
    state, logits = feed(decoder, params, prompts)
    started, _ = start(
        decoder,
        state,
        logits,
        jnp.asarray(np.broadcast_to(budgets, batch), jnp.int32),
        decoder.settings(wanted),
        jnp.asarray(range(batch) if sequence is None else sequence, jnp.int32),
        constraint=decoder.constraint(wanted),
    )
    first = np.asarray(started.pending)
    chunks: list[ChunkRecord] = []
    while not chunks or int(chunks[-1].n_rounds) == rounds_per_chunk:
        started, chunk = decode_chunk(decoder, params, started, rounds_per_chunk)
        chunks.append(jax.device_get(chunk))
    rounds = jax.tree.map(lambda *x: np.concatenate(x), *(cut(chunk) for chunk in chunks))
    tokens = [[int(first[row])] for row in range(batch)]
    for emitted, count in zip(rounds.tokens, rounds.n_emitted, strict=True):
        for row in range(batch):
            tokens[row] += emitted[row, : count[row]].tolist()
    return Run(tokens, rounds, chunks, started)


def cut(chunk: ChunkRecord) -> RoundRecord:
    """The rounds of a chunk that were run."""
    return jax.tree.map(lambda x: np.asarray(x)[: int(chunk.n_rounds)], chunk.rounds)


def ragged_prompts(config: Qwen35Config, lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    """Random prompts of the given lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, config.vocab_size, length).tolist() for length in lengths]
