"""How probable the tokens of one text are, with the most probable ones at each place."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import new_sequences
from specjax.decoding.vocabulary import logsumexp
from specjax.mesh.columns import top_k, values_at
from specjax.mesh.shards import REPLICATED, on_shards
from specjax.models.protocol import FeatureRequest, Params, Target
from specjax.runtime.feeding import pieces_of
from specjax.runtime.model import Model
from specjax.runtime.request import TokenLogprobs
from specjax.runtime.slots import slots_for
from specjax.state import SequenceState

TOP_WIDTHS = (0, 5, 20)
"""Alternatives are computed in one of these numbers, because each is a program of its own; more are refused."""


def prompt_logprobs(model: Model, tokens: Sequence[int], top: int) -> Generator[None, None, list[TokenLogprobs]]:
    """The log-probabilities of a text's tokens from the second one on; yields after each piece of the text.

    Args:
        model: what scores them.
        tokens: the text, checked.
        top: alternatives at each place.

    Raises:
        ValueError: there are too many alternatives.
    """
    width = next((width for width in TOP_WIDTHS if width >= top), None)
    if width is None:
        raise ValueError(f"{top} alternatives are asked for at each token; ask for at most {TOP_WIDTHS[-1]}")
    fed, after = tokens[:-1], np.array([*tokens[1:], 0], np.int32)
    state = new_sequences(Decoder(model.target, None, max_drafts=0), model.params, 1, slots_for(len(tokens)))
    found: list[TokenLogprobs] = []
    for piece, n_valid in pieces_of(fed):
        count, begin = int(n_valid[0]), len(found)
        wanted = np.zeros_like(piece)
        wanted[0, :count] = after[begin : begin + count]
        state, *scores = _score_piece(model.target, model.params, state, piece, wanted, n_valid, width)
        logprobs, best, index = (np.asarray(each)[0, :count].tolist() for each in scores)
        found += [
            TokenLogprobs(logprob, tuple(zip(*pair, strict=True))[:top])
            for logprob, *pair in zip(logprobs, index, best, strict=True)
        ]
        yield
    return found


@partial(jax.jit, static_argnames=("target", "top"), donate_argnames="state")
def _score_piece(
    target: Target,
    params: Params,
    state: SequenceState,
    tokens: Int[Array, "1 T"],
    after: Int[Array, "1 T"],
    n_valid: Int[Array, "1"],
    top: int,
) -> tuple[SequenceState, Float[Array, "1 T"], Float[Array, "1 T n"], Int[Array, "1 T n"]]:
    """The log-probability of the token after each position, and the most probable tokens there."""

    def run(
        parts: int, params: Params, state: SequenceState, tokens: Array, after: Array, n_valid: Array
    ) -> tuple[SequenceState, Array, Array, Array]:
        output, state = target.shard(parts).extend(params, tokens, n_valid, state, request=FeatureRequest(), rows="all")
        assert output.logits is not None
        logits = output.logits.astype(jnp.float32)
        log_total = logsumexp(logits)
        best, index = top_k(logits, top)
        return state, (values_at(logits, after[..., None]) - log_total)[..., 0], best - log_total, index

    out = lambda params, state, *_: (state, REPLICATED, REPLICATED, REPLICATED)  # noqa: E731
    return on_shards(run, params, state, tokens, after, n_valid, out=out)
