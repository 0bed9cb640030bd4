"""Log-probabilities of texts that are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.argmax import argmax
from specjax.decoding.decoder import LONGEST_CHUNK, Decoder
from specjax.decoding.new_state import new_sequences
from specjax.decoding.vocabulary import logsumexp
from specjax.mesh.columns import values_at
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import FeatureRequest, Params, Target
from specjax.runtime.pieces import piece_size, width_of
from specjax.runtime.prompts import check_prompts
from specjax.runtime.scoring_plan import Batch, Cluster, plan
from specjax.runtime.slots import slots_for
from specjax.state import SequenceState

if TYPE_CHECKING:
    from specjax.runtime.model import Model

MOST_LOGITS = 2**26
"""Logits that exist at once: 256 MB in float32."""

MOST_ROWS = 16
"""Texts that are scored together."""


@dataclass(frozen=True)
class Score:
    """How probable a model finds a continuation.

    Attributes:
        logprobs: the log-probability of each of its tokens, natural, after the prompt and the tokens before it.
        greedy: whether each of its tokens is the most probable one at its place, so that greedy decoding says it.
    """

    logprobs: tuple[float, ...]
    greedy: bool

    @property
    def total(self) -> float:
        """The log-probability of the whole continuation."""
        return sum(self.logprobs)


def score(
    model: Model, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], *, rows: int = MOST_ROWS
) -> list[Score]:
    """The scores of continuations, each after its prompt, in their order; see `score_each`."""
    scores = dict(score_each(model, prompts, continuations, rows=rows))
    return [scores[index] for index in range(len(prompts))]


def score_each(
    model: Model, prompts: Sequence[Sequence[int]], continuations: Sequence[Sequence[int]], *, rows: int = MOST_ROWS
) -> Iterator[tuple[int, Score]]:
    """The number of each text and its score, as they become known.

    What prompts share at their start is fed once, see `plan`. Logits are computed for continuations alone, and those of
    a whole text never exist at once.

    Args:
        model: what scores them.
        prompts, continuations: token ids.
        rows: B, the most texts that are scored together.

    Raises:
        PromptError: a prompt is empty, a text is longer than the model's context plus one token, or it has ids outside
            the vocabulary.
    """
    texts = [[*prompt, *continuation] for prompt, continuation in zip(prompts, continuations, strict=True)]
    check_prompts(model.target, prompts, new_tokens=0)
    check_prompts(model.target, texts, new_tokens=-1)  # the last token is not fed
    for cluster in plan(prompts, continuations, rows):
        yield from _score_cluster(model, cluster, rows)


def _score_cluster(model: Model, cluster: Cluster, rows: int) -> Iterator[tuple[int, Score]]:
    decoder = Decoder(model.target, None, max_drafts=0)
    empty = new_sequences(decoder, model.params, 1, slots_for(cluster.longest))
    trunk = _feed(model, empty, [cluster.trunk])
    for texts, batches in groupby(cluster.batches, key=lambda batch: batch.stems):
        width = width_of(len(texts), rows)
        stems = _feed(model, _forked(trunk, _padded([0] * len(texts), width)), texts)
        for batch in batches:
            yield from _score_batch(model, stems, batch, rows)


def _feed(model: Model, state: SequenceState, texts: Sequence[Sequence[int]]) -> SequenceState:
    """Feed a text to each of the first rows; no logits are computed."""
    for tokens, n_valid in _pieces(texts, state.length.shape[0], LONGEST_CHUNK):
        state = _feed_piece(model.target, model.params, state, tokens, n_valid)
    return state


def _score_batch(model: Model, stems: SequenceState, batch: Batch, rows: int) -> Iterator[tuple[int, Score]]:
    leaves = batch.leaves
    width, size = width_of(len(leaves), rows), LONGEST_CHUNK
    while size > 16 and width * size * model.target.vocab_size > MOST_LOGITS:
        size //= 4
    state = _forked(stems, _padded([leaf.stem for leaf in leaves], width))
    fed, targets = [leaf.fed for leaf in leaves], [leaf.targets for leaf in leaves]
    scored = []
    for (tokens, n_valid), (after, _) in zip(_pieces(fed, width, size), _pieces(targets, width, size), strict=True):
        state, *found = _score_piece(model.target, model.params, state, tokens, after, n_valid)
        scored.append(found)
    parts = jax.device_get(scored) or [(np.zeros((width, 0)), np.zeros((width, 0), bool))]
    logprobs, best = (np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
    for row, leaf in enumerate(leaves):
        count = len(leaf.targets)
        yield leaf.index, Score(tuple(logprobs[row, :count].tolist()), bool(best[row, :count].all()))


def _pieces(
    texts: Sequence[Sequence[int]], width: int, most: int
) -> Iterator[tuple[Int[np.ndarray, "B T"], Int[np.ndarray, "B"]]]:
    """The texts in pieces of few sizes, at most `most` tokens each, and how many tokens of each row count."""
    begin, longest = 0, max(map(len, texts))
    while begin < longest:
        tokens = np.zeros((width, min(piece_size(longest - begin), most)), np.int32)
        n_valid = np.zeros(width, np.int32)
        for row, text in enumerate(texts):
            part = text[begin : begin + tokens.shape[1]]
            tokens[row, : len(part)], n_valid[row] = part, len(part)
        yield tokens, n_valid
        begin += tokens.shape[1]


def _padded(rows: Sequence[int], width: int) -> Int[np.ndarray, "B"]:
    return np.array([*rows, *[0] * (width - len(rows))], np.int32)


@jax.jit
def _forked(state: SequenceState, rows: Int[Array, "B"]) -> SequenceState:
    """Copies of rows, some of them more than once."""

    def run(parts: int, state: SequenceState, rows: Array) -> SequenceState:
        del parts
        return jax.tree.map(lambda x: x[rows], state)

    return on_shards(run, state, rows, out=lambda state, rows: state)


@partial(jax.jit, static_argnames="target", donate_argnames="state")
def _feed_piece(
    target: Target, params: Params, state: SequenceState, tokens: Int[Array, "B T"], n_valid: Int[Array, "B"]
) -> SequenceState:

    def run(parts: int, params: Params, state: SequenceState, tokens: Array, n_valid: Array) -> SequenceState:
        return target.shard(parts).extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="none")[1]

    return on_shards(run, params, state, tokens, n_valid, out=lambda params, state, *_: state)


@partial(jax.jit, static_argnames="target", donate_argnames="state")
def _score_piece(
    target: Target,
    params: Params,
    state: SequenceState,
    tokens: Int[Array, "B T"],
    after: Int[Array, "B T"],
    n_valid: Int[Array, "B"],
) -> tuple[SequenceState, Float[Array, "B T"], Bool[Array, "B T"]]:
    """The log-probability of the token after each position, and whether it is the most probable one."""

    def run(
        parts: int, params: Params, state: SequenceState, tokens: Array, after: Array, n_valid: Array
    ) -> tuple[SequenceState, Array, Array]:
        output, state = target.shard(parts).extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="all")
        assert output.logits is not None
        logits = output.logits.astype(jnp.float32)
        chosen = values_at(logits, after[..., None])[..., 0]
        return state, chosen - logsumexp(logits)[..., 0], argmax(logits) == after

    return on_shards(
        run, params, state, tokens, after, n_valid, out=lambda params, state, *_: (state, REPLICATED, REPLICATED)
    )
