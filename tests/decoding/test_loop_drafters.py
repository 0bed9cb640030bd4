"""The n-gram drafter and ordinary draft models behind the loop: right drafts, and the tokens of plain decoding."""

from __future__ import annotations

from collections import Counter
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ragged import LENGTHS, MAX_TOKENS, WARM, assert_same_committed, plain, prompts
from scripted import CAPACITY, Run, run
from tiny_models import DENSE, make_params, relative_rms
from wants import GREEDY

from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import SamplerConfig
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.drafters.ngram import PLACES, NGram, NGramState
from specjax.models.protocol import Drafter, Params, Proposal
from specjax.models.qwen3_5 import Qwen35Target
from specjax.state import RollbackStrategy, SequenceState

SMALL = DraftModel(Qwen35Target(DENSE), DENSE.vocab_size)


def speculate(
    drafter: Drafter, params: Params, drafts: int, sampler: SamplerConfig, rollback: RollbackStrategy = "replay"
) -> Run:
    decoder = Decoder(Qwen35Target(DENSE), drafter, "coupled", drafts, rollback, margins=True)
    return run(decoder, params, prompts(DENSE), MAX_TOKENS, sampler=sampler)


@cache
def with_draft_model(noise: float) -> Params:
    """The target's weights, and for the small model the same ones with relative noise."""
    rng = np.random.default_rng(1)
    params = make_params(DENSE)
    own = jax.tree.map(lambda x: x * (1 + noise * rng.normal(size=x.shape).astype(np.float32)), params["target"])
    return {**params, "draft": {"target": own}}


@pytest.mark.parametrize(
    ("drafts", "rollback"),
    [
        pytest.param(1, "snapshot", marks=pytest.mark.slow),
        (3, "replay"),
        pytest.param(5, "replay", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("sampler", [GREEDY, WARM], ids=["greedy", "coupled"])
def test_a_draft_model_changes_no_token(drafts: int, rollback: RollbackStrategy, sampler: SamplerConfig) -> None:
    want = plain(DENSE, sampler)
    got = speculate(SMALL, with_draft_model(0.05), drafts, sampler, rollback)
    assert got.tokens == want.tokens
    assert_same_committed(got.state.sequences, want.state.sequences)
    assert set(got.rounds.n_accepted[got.rounds.n_drafted == drafts]) == set(range(drafts + 1))


def test_the_target_drafting_for_itself_is_always_right() -> None:
    got = speculate(SMALL, with_draft_model(0.0), 3, GREEDY)
    assert got.tokens == plain(DENSE, GREEDY).tokens
    np.testing.assert_array_equal(got.rounds.n_accepted, got.rounds.n_drafted)


def test_a_draft_model_is_left_with_what_was_committed() -> None:
    """Its state, once it has been fed what waits, is that of the target: the weights are the same."""
    result = speculate(SMALL, with_draft_model(0.0), 3, WARM)
    own, target = result.state.sequences.drafter, result.state.sequences
    np.testing.assert_array_equal(own.sequences.length + own.count, target.length)
    empty = jnp.zeros((len(LENGTHS), 1), jnp.int32)
    one, pending = jnp.ones(len(LENGTHS), jnp.int32), result.state.pending[:, None]
    fed = jax.jit(SMALL.extend)(with_draft_model(0.0), pending, (), one, own, target.length)
    _, both = jax.jit(Qwen35Target(DENSE).extend)(make_params(DENSE), pending, one, target)
    np.testing.assert_array_equal(fed.count, empty[:, 0])
    for layer, reference in zip(fed.sequences.layers, both.layers, strict=True):
        if hasattr(reference, "matrix_state"):
            assert relative_rms(layer.matrix_state(), reference.matrix_state()) < 1e-5
        else:
            below = np.arange(CAPACITY) < np.asarray(both.length)[:, None]
            assert relative_rms(np.asarray(layer.keys)[below], np.asarray(reference.keys)[below]) < 1e-5


def look_up(text: list[int], drafts: int, shortest: int, longest: int) -> list[tuple[int, float]]:
    """Prompt lookup with counts by definition: drafts and the shares of the places that agree with them."""
    for size in range(min(longest, len(text) - 1), shortest - 1, -1):
        ends = [end for end in range(size, len(text)) if text[end - size : end] == text[-size:]][-PLACES:]
        said, found = [text[end:] * drafts for end in reversed(ends)], []
        for place in range(drafts) if said else ():
            count = Counter(each[place] for each in said)
            token = max((each[place] for each in said), key=count.__getitem__)  # the first of equals: the latest
            found.append((token, count[token] / len(said)))
            said = [each for each in said if each[place] == token]
        if found:
            return found
    return []


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (2, 4), (1, 16)])
def test_ngram_drafts_what_followed_most_of_the_longest_matches(shortest: int, longest: int) -> None:
    rng = np.random.default_rng(0)
    lengths = [0, 1, 2, 3, 7, 20, 30, 40, 90]
    texts = [rng.integers(0, 4, length).tolist() for length in lengths]
    texts[5][8:] = texts[5][:12]  # a long match
    drafter = NGram(longest, shortest)
    tokens = np.full((len(texts), 96), 3, np.int32)  # what stands behind the text must not matter
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    state = SequenceState((), NGramState(jnp.asarray(tokens), jnp.asarray(lengths)), jnp.asarray(lengths))
    hits, doubts = 0, 0
    for pending in range(4):
        proposal: Proposal = drafter.propose(
            {}, jnp.full(len(texts), pending), state, num_drafts=5, choose=None, keep_going=None
        )
        assert proposal.made is not None
        for row, text in enumerate(texts):
            want = look_up([*text, pending], 5, shortest, longest)
            made = int(proposal.made[row])
            assert proposal.tokens[row, :made].tolist() == [token for token, _ in want]
            np.testing.assert_allclose(proposal.confidence[row, :made], [share for _, share in want], rtol=1e-6)
            assert made or not proposal.confidence[row].any()
            hits += bool(want)
            doubts += any(share < 1 for _, share in want)
    assert hits > 10
    assert doubts > 3


@pytest.mark.parametrize("sampler", [GREEDY, WARM], ids=["greedy", "coupled"])
def test_ngram_drafts_change_no_token(sampler: SamplerConfig) -> None:
    want = plain(DENSE, sampler)
    got = speculate(NGram(longest=3, shortest=1), make_params(DENSE), 3, sampler)
    assert got.tokens == want.tokens
    history = got.state.sequences.drafter
    for row, (prompt, tokens) in enumerate(zip(prompts(DENSE), want.tokens, strict=True)):
        assert history.tokens[row, : history.length[row]].tolist() == [*prompt, *tokens][: history.length[row]]
    assert got.rounds.n_drafted.min() == 0
    assert got.rounds.n_accepted.max() > 0


def test_an_ngram_of_no_length_is_refused() -> None:
    with pytest.raises(ValueError, match="1 <= shortest <= longest"):
        NGram(longest=2, shortest=3)
