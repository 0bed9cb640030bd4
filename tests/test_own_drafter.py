"""A class of the user's own drafts wherever a drafter of the project does, and changes no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from own_drafter import code_blocks, documented

import specjax
from specjax.evaluation.evaluate import Evaluation
from specjax.evaluation.prompts import PromptLine
from specjax.models.protocol import Choice
from specjax.state import Part, Shift

FIXTURES = Path(__file__).parent / "fixtures"
HYBRID = FIXTURES / "qwen3_5" / "dense" / "hf"
GREEDY = specjax.GenerateOptions(max_tokens=24, draft=3, ignore_eos=True)
COUPLED = replace(GREEDY, temperature=0.8, seed=3, accept="coupled")


@cache
def plain() -> specjax.Model:
    return specjax.load(HYBRID)


def prompts() -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 60, length).tolist() for length in (5, 12, 2)]


@cache
def drawn() -> list[list[int]]:
    return [each.tokens for each in plain().generate_batch(prompts(), COUPLED, draft=0)]


@cache
def model() -> specjax.Model:
    """With the bigrams of what the model says itself, so that some drafts are right."""
    return specjax.load(HYBRID, drafter=documented()["Bigram"](tuple(token for tokens in drawn() for token in tokens)))


def test_the_drafter_of_the_page_is_short() -> None:
    assert len(code_blocks()[0].splitlines()) <= 40


def test_batches_sessions_and_evaluations_say_what_they_say_without_it() -> None:
    got = model().generate_batch(prompts(), COUPLED)
    assert [generation.tokens for generation in got] == drawn()
    assert sum(generation.stats.accepted for generation in got) > 0
    lines = [PromptLine(index, index, prompt, {}, "here") for index, prompt in enumerate(prompts())]
    results = sorted(Evaluation(model(), lines, COUPLED, rows=3).run(), key=lambda result: result.index)
    assert [result.tokens for result in results] == drawn()
    chats = [model().session(GREEDY, slots=256), plain().session(GREEDY, draft=0, slots=256)]
    for prompt in prompts():
        (reply, chats[0]), (same, chats[1]) = (chat.generate([*chat.conversation, *prompt]) for chat in chats)
        assert reply.tokens == same.tokens


def test_a_session_with_it_can_be_saved_and_can_drop_tokens(tmp_path: Path) -> None:
    dense = specjax.load(FIXTURES / "dense" / "qwen3" / "hf", drafter=documented()["Bigram"](tuple(range(60))))
    chat = dense.session(GREEDY, slots=256, when_full="shift")
    without = dense.session(GREEDY, draft=0, slots=256, when_full="shift")
    for length in (190, 50, 60):
        prompt = np.random.default_rng(length).integers(0, 60, length).tolist()
        reply, chat = chat.generate([*chat.conversation, *prompt])
        same, without = without.generate([*without.conversation, *prompt])
        assert reply.tokens == same.tokens
        chat.save(tmp_path / "chat")
        chat = dense.load_session(tmp_path / "chat")
    assert chat.cuts == without.cuts != ()


@struct.dataclass
class LastSeen(Part):
    """What followed each token the last time, of the sequence itself; the token after which nothing followed yet."""

    follows: jnp.ndarray
    last: jnp.ndarray

    def after(self, tokens: jnp.ndarray, n: jnp.ndarray) -> LastSeen:
        state, rows = self, jnp.arange(len(n))
        for index, token in enumerate(tokens.T):
            valid = index < n
            at = jnp.where(valid & (state.last >= 0), state.last, state.follows.shape[1])
            follows = state.follows.at[rows, at].set(token, mode="drop")
            state = LastSeen(follows, jnp.where(valid, token, state.last))
        return state

    @property
    def cannot_shift(self) -> None:
        return None

    def shift(self, shift: Shift) -> LastSeen:
        return self


@struct.dataclass
class LastSeenWindow:
    state: LastSeen
    tokens: jnp.ndarray

    def commit(self, n: jnp.ndarray) -> LastSeen:
        return self.state.after(self.tokens, n)


@dataclass(frozen=True)
class OwnBigram(specjax.BaseDrafter):
    """A drafter with a state of its own, which `attach` tells the size of the vocabulary."""

    vocab_size: int | None = None

    def attach(self, target: Any) -> OwnBigram:
        return OwnBigram(target.vocab_size)

    def init_state(self, batch: int, capacity: int, **settings: Any) -> LastSeen:
        return LastSeen(jnp.zeros((batch, self.vocab_size or 1), jnp.int32), jnp.full((batch,), -1))

    def extend(self, params: Any, tokens: Any, features: Any, n_valid: Any, state: LastSeen, length: Any) -> LastSeen:
        return state.after(tokens, n_valid)

    def propose(
        self, params: Any, pending: Any, state: Any, *, num_drafts: int, choose: Callable, keep_going: Callable
    ) -> specjax.Proposal:
        known = state.drafter.after(pending[:, None], jnp.ones_like(pending)).follows
        drafts, token = [], pending
        for _ in range(num_drafts):
            token = known[jnp.arange(len(pending)), token]
            drafts.append(token)
        return specjax.Proposal.sure(jnp.stack(drafts, axis=1), state.drafter)

    def observe(self, tokens: Any, features: Any, state: LastSeen) -> LastSeenWindow:
        return LastSeenWindow(state, tokens)


def test_a_drafter_with_a_state_of_its_own_goes_back_with_the_conversation() -> None:
    own = specjax.load(HYBRID, drafter=OwnBigram())
    assert own.drafter == OwnBigram(own.config.vocab_size)
    chat, prompt = own.session(GREEDY, slots=256), prompts()[1]
    first, chat = chat.generate(prompt)
    assert first.tokens == plain().generate(prompt, GREEDY, draft=0).tokens
    changed = [*prompt, *first.tokens[:7], 5, 5]
    reply, after = chat.generate(changed)
    fresh = own.generate(changed, GREEDY)
    assert after.reuse.reused == len(prompt)
    assert reply.tokens == fresh.tokens == plain().generate(changed, GREEDY, draft=0).tokens
    assert reply.stats == fresh.stats, "the drafts are those of a state that never saw the reply"


@pytest.mark.parametrize("stated", [True, False])
def test_a_proposal_of_choices_has_a_column_for_each(stated: bool) -> None:
    choices = [
        Choice(jnp.array([k, 10 + k]), jnp.full((2, 3), -k * 1.0) if stated else None, jnp.array([0.5, k / 8]))
        for k in range(4)
    ]
    proposal = specjax.Proposal.drawn(choices, "a state")
    np.testing.assert_array_equal(proposal.tokens, [[0, 1, 2, 3], [10, 11, 12, 13]])
    np.testing.assert_array_equal(proposal.confidence[1], np.arange(4) / 8)
    assert (None if proposal.logq is None else proposal.logq[1, 3].tolist()) == ([-3.0] * 3 if stated else None)
    assert proposal.state == "a state"
    assert proposal.made is None


@dataclass(frozen=True)
class Unhashable(OwnBigram):
    table: np.ndarray = field(default_factory=lambda: np.zeros(3))


@dataclass(frozen=True)
class Picky(OwnBigram):
    def attach(self, target: Any) -> Picky:
        raise ValueError(f"a vocabulary of {target.vocab_size} is too small")


@dataclass(frozen=True)
class Stateful(OwnBigram):
    def init_state(self, batch: int, capacity: int, **settings: Any) -> Any:
        return jnp.zeros((batch,))


@dataclass(frozen=True)
class Greedy(OwnBigram):
    def parameters(self, target: Any) -> Any:
        return {"target": jnp.zeros(3)}


@pytest.mark.parametrize(
    ("drafter", "message"),
    [
        (object(), "is no drafter: it has no .*propose.*Derive its class from specjax.BaseDrafter"),
        (specjax.BaseDrafter(), "it has no propose"),
        (Unhashable(), "cannot be hashed .* make its class a frozen dataclass"),
        (Picky(), "does not fit the target: a vocabulary of 320 is too small"),
        (Stateful(), "derive its class from specjax.state.Part"),
        (Greedy(), "are called target, as those of the target are"),
    ],
    ids=["object", "no-propose", "unhashable", "picky", "state", "names"],
)
def test_what_is_no_drafter_or_does_not_fit_is_refused(drafter: Any, message: str) -> None:
    with pytest.raises(specjax.SpecjaxError, match=message):
        specjax.load(HYBRID, drafter=drafter)
