"""The chained MTP heads of Step-3.5, round by round: against llama.cpp's speculative decoding, and against NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from naive_step3_5 import draft_round, trunk_hidden, trunk_logits
from test_step3_5 import CAPACITY, PIECE, TOLERANCE, load, reference
from tiny_models import relative_rms

from specjax.models.protocol import Choice, Params, Proposal
from specjax.models.step3_5 import Step35Config, Step35MTP, Step35Target
from specjax.state import SequenceState, commit

HEADS = {"flash": 3, "plain": 2}
ALWAYS = 0.0


class Exposed(Step35MTP):
    """The heads, whose logits carry the hidden state that they were made from behind them."""

    def logits(self, params: Params, index: int, hidden: jax.Array) -> jax.Array:
        return jnp.concatenate([super().logits(params, index, hidden), hidden], axis=-1)


def choose(logits: jax.Array, position: jax.Array, before: Any = None, *, vocab: int) -> Choice:
    return Choice(jnp.argmax(logits[:, :vocab], axis=-1), logits, jnp.ones(position.shape))


@partial(jax.jit, static_argnames=("config", "drafts"))
def propose(config: Step35Config, params: Params, pending: jax.Array, state: SequenceState, drafts: int) -> Proposal:
    return Exposed(config).propose(
        params,
        pending,
        state,
        num_drafts=drafts,
        choose=partial(choose, vocab=config.vocab_size),
        keep_going=lambda confidence, made: confidence > ALWAYS,
    )


@partial(jax.jit, static_argnums=0)
def feed(config: Step35Config, params: Params, tokens: jax.Array, n_valid: jax.Array, state: SequenceState) -> tuple:
    """Final tokens to the target and the heads; logits of each row's last token, and the state."""
    drafter = Step35MTP(config)
    out, after = Step35Target(config).extend(params, tokens, n_valid, state, request=drafter.request)
    assert out.logits is not None
    head = drafter.extend(params, tokens, out.features, n_valid, state.drafter, state.length)
    return out.logits[:, 0], SequenceState(after.layers, head, after.length)


@partial(jax.jit, static_argnums=0)
def verify(
    config: Step35Config, params: Params, pending: jax.Array, proposal: Proposal, state: SequenceState, n: jax.Array
) -> tuple[jax.Array, SequenceState]:
    """Accept n drafts in each row (none and not the pending token either for n < 0), whatever the target says."""
    drafter = Step35MTP(config)
    tokens = jnp.concatenate([pending[:, None], proposal.tokens], axis=1)
    n_valid = jnp.where(n < 0, 0, tokens.shape[1])
    out, window = Step35Target(config).verify(params, tokens, n_valid, state, request=drafter.request)
    assert out.logits is not None
    window = window.replace(drafter=drafter.observe(tokens, out.features, proposal.state))
    following = jnp.argmax(out.logits, axis=-1)[jnp.arange(len(n)), jnp.maximum(n, 0)]
    return jnp.where(n < 0, pending, following).astype(pending.dtype), commit(window, n + 1)


def start(config: Step35Config, params: Params, prompts: Sequence[np.ndarray], drafts: int) -> tuple:
    """The greedy token after each prompt, and the state, fed in pieces so short that rings go round."""
    batch, rows = len(prompts), drafts + 1
    state = SequenceState(
        Step35Target(config).init_layers(batch, CAPACITY, rows=rows, chunk=PIECE, rollback="replay"),
        Step35MTP(config).init_state(batch, CAPACITY, rows=rows, chunk=PIECE),
        jnp.zeros((batch,), jnp.int32),
    )
    pending = np.zeros(batch, np.int32)
    for begin in range(0, max(map(len, prompts)), PIECE):
        tokens, n_valid = np.zeros((batch, PIECE), np.int32), np.zeros(batch, np.int32)
        for row, prompt in enumerate(prompts):
            piece = prompt[begin : begin + PIECE]
            tokens[row, : len(piece)], n_valid[row] = piece, len(piece)
        logits, state = feed(config, params, tokens, n_valid, state)
        pending = np.where(n_valid > 0, logits.argmax(-1), pending).astype(np.int32)
    return jnp.asarray(pending), state


@pytest.mark.parametrize("name", ["flash", pytest.param("plain", marks=pytest.mark.slow)])
def test_rounds_agree_with_llama_cpp(name: str) -> None:
    """Tokens, logits and hidden states of every head, in every round, after every count of accepted drafts."""
    want, heads = reference(name), HEADS[name]
    config, params = load(name, "model.gguf")
    pending, state = start(config, params, [want["prompt"], *prompts(name)[:2]], heads)  # a batch as in other tests
    assert set(want["accepted"]) == set(range(heads + 1))
    errors = []
    for index, accepted in enumerate(want["accepted"]):
        assert int(pending[0]) == want["pending"][index]
        proposal = propose(config, params, pending, state, heads)
        assert proposal.tokens[0].tolist() == want["draft_tokens"][index].tolist()
        assert proposal.logq is not None
        logits, hidden = jnp.split(proposal.logq[0], [config.vocab_size], axis=-1)
        errors += [relative_rms(logits, want["draft_logits"][index]), relative_rms(hidden, want["draft_hidden"][index])]
        counts = [accepted, heads - accepted, -1]
        pending, state = verify(config, params, pending, proposal, state, jnp.array(counts))
    assert max(errors) <= TOLERANCE


@cache
def prompts(name: str) -> list[np.ndarray]:
    """Prompts around the sliding window and one that goes far beyond it; the first is a single token."""
    prompt = reference(name)["prompt"]
    return [prompt[:1], prompt[3:27], prompt[40:130]]


@pytest.mark.slow  # llama.cpp's rounds hold the same in `make test`
@pytest.mark.parametrize(("name", "drafts"), [("flash", 1), ("flash", 2), ("flash", 3), ("plain", 2)])
def test_rounds_agree_with_a_recomputation_from_scratch(name: str, drafts: int) -> None:
    """Ragged rows, each with its own accept counts; the last row stands still for some rounds."""
    config, params = load(name, "hf")
    committed = [prompt.tolist() for prompt in prompts(name)]
    pending, state = start(config, params, prompts(name), drafts)
    rng = np.random.default_rng(drafts)
    counts = np.concatenate(
        [rng.integers(0, drafts + 1, (2 * drafts + 2, 2)), np.full((2 * drafts + 2, 1), -1)], axis=1
    )
    counts[::2, 2] = np.resize(np.arange(drafts + 1), drafts + 1)
    for accepted in counts:
        proposal = propose(config, params, pending, state, drafts)
        assert proposal.logq is not None
        logits, hidden = jnp.split(proposal.logq, [config.vocab_size], axis=-1)
        for row, tokens in enumerate(committed):
            assert int(state.length[row]) == len(tokens)
            drafted = proposal.tokens[row].tolist()
            law = draft_round(config, params, tokens, int(pending[row]), drafts, drafted)
            assert drafted == [draft.token for draft in law]
            assert relative_rms(logits[row], [draft.logits for draft in law]) <= TOLERANCE
            assert relative_rms(hidden[row], [draft.hidden for draft in law]) <= TOLERANCE
            kept = [int(pending[row]), *drafted][: accepted[row] + 1]
            committed[row] = tokens + kept
        pending, state = verify(config, params, pending, proposal, state, jnp.asarray(accepted))
    for row, tokens in enumerate(committed):
        target = trunk_hidden(config, params, tokens)
        assert relative_rms(state.drafter.hidden[row, -1], target[-1]) <= TOLERANCE
        assert int(pending[row]) == trunk_logits(config, params, target[-1]).argmax()


def test_a_round_depends_on_the_committed_tokens_alone() -> None:
    """However they were committed, a fresh prefill of the same tokens drafts the same."""
    config, params = load("flash", "model.gguf")
    committed = [prompt.tolist() for prompt in prompts("flash")]
    pending, state = start(config, params, prompts("flash"), 3)
    for accepted in ([3, 0, 1], [0, 2, 3], [1, 3, 0], [2, 1, 2]):
        proposal = propose(config, params, pending, state, 3)
        for row, count in enumerate(accepted):
            committed[row] += [int(pending[row]), *proposal.tokens[row].tolist()][: count + 1]
        pending, state = verify(config, params, pending, proposal, state, jnp.array(accepted))
    fresh_pending, fresh = start(config, params, [np.array(tokens, np.int32) for tokens in committed], 3)
    np.testing.assert_array_equal(fresh_pending, pending)
    got, want = (propose(config, params, pending, each, 3) for each in (state, fresh))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert relative_rms(got.logq, want.logq) <= TOLERANCE


def test_final_tokens_after_rounds_are_fed_behind_the_rows_that_wait() -> None:
    """As in the next turn of a conversation: rows of the last round still wait when a longer text comes."""
    config, params = load("flash", "model.gguf")
    committed = [prompt.tolist() for prompt in prompts("flash")]
    pending, state = start(config, params, prompts("flash"), 3)
    for accepted in ([3, 0, 1], [2, 3, 0]):
        proposal = propose(config, params, pending, state, 3)
        for row, count in enumerate(accepted):
            committed[row] += [int(pending[row]), *proposal.tokens[row].tolist()][: count + 1]
        pending, state = verify(config, params, pending, proposal, state, jnp.array(accepted))
    turn = np.random.default_rng(0).integers(0, 300, (3, PIECE)).astype(np.int32)
    n_valid = np.array([PIECE, 1, 7])
    turn[:, 0] = pending
    for row, tokens in enumerate(turn):
        committed[row] += tokens[: n_valid[row]].tolist()
    logits, state = feed(config, params, turn, n_valid, state)
    pending = logits.argmax(-1).astype(jnp.int32)
    proposal = propose(config, params, pending, state, 3)
    for row, tokens in enumerate(committed):
        drafted = proposal.tokens[row].tolist()
        law = draft_round(config, params, tokens, int(pending[row]), 3, drafted)
        assert drafted == [draft.token for draft in law]
        assert proposal.logq is not None
        want = [np.concatenate([draft.logits, draft.hidden]) for draft in law]
        assert relative_rms(proposal.logq[row], want) <= TOLERANCE


@pytest.mark.slow
def test_fewer_drafts_than_heads_keep_all_heads_caught_up() -> None:
    config, params = load("flash", "model.gguf")
    pending, state = start(config, params, prompts("flash"), 3)
    whole = propose(config, params, pending, state, 3)
    short = propose(config, params, pending, state, 1)
    np.testing.assert_array_equal(short.tokens, whole.tokens[:, :1])
    none = jnp.zeros(len(pending), jnp.int32)
    following = [verify(config, params, pending, proposal, state, none) for proposal in (whole, short)]
    got, want = (propose(config, params, *round_, 3) for round_ in following)
    np.testing.assert_array_equal(got.tokens, want.tokens)
    assert relative_rms(got.logq, want.logq) <= 1e-6


def test_drafting_stops_when_no_row_is_sure_and_goes_on_unharmed() -> None:
    config, params = load("flash", "model.gguf")
    pending, state = start(config, params, prompts("flash"), 3)
    whole = propose(config, params, pending, state, 3)

    def unsure(logits: jax.Array, position: jax.Array, before: Any = None) -> Choice:
        sure = jnp.where(position == state.length + 1, 1.0, 0.5)  # the first draft is sure, the second is not
        return Choice(jnp.argmax(logits[:, : config.vocab_size], axis=-1), logits, sure)

    stopped = jax.jit(Exposed(config).propose, static_argnames=("num_drafts", "choose", "keep_going"))(
        params, pending, state, num_drafts=3, choose=unsure, keep_going=lambda confidence, made: confidence > 0.7
    )
    np.testing.assert_array_equal(stopped.confidence, np.tile([1, 0.5, 0], (3, 1)))
    np.testing.assert_array_equal(stopped.tokens[:, :2], whole.tokens[:, :2])
    none = jnp.zeros(len(pending), jnp.int32)
    got, want = (
        propose(config, params, *verify(config, params, pending, proposal, state, none), 3)
        for proposal in (stopped, whole)
    )
    np.testing.assert_array_equal(got.tokens, want.tokens)


@pytest.mark.slow
def test_heads_that_a_round_cannot_use_have_no_cache() -> None:
    config, _ = load("flash", "model.gguf")
    head = Step35MTP(config)
    assert head.max_drafts == 3
    caches = head.init_state(2, 4096, rows=3, chunk=PIECE).kv
    assert [cache.capacity for cache in caches] == [24 + 2 + PIECE] * 2, "two heads, both sliding: rings"
    with pytest.raises(ValueError, match="3 drafts need as many heads; this state was made for 2"):
        propose(
            config,
            load("flash", "model.gguf")[1],
            *start(config, load("flash", "model.gguf")[1], prompts("flash"), 2),
            3,
        )
