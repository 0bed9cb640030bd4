"""Conversations: a turn that starts from the last one gives the tokens of a turn that starts from nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specjax
from specjax.sessions.session import Session

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture(scope="module")
def hybrid() -> specjax.Model:
    return specjax.load(FIXTURES / "qwen3_5" / "dense" / "hf")


@pytest.fixture(scope="module")
def dense() -> specjax.Model:
    return specjax.load(FIXTURES / "dense" / "qwen3" / "hf")


@pytest.fixture(scope="module")
def sliding() -> specjax.Model:
    return specjax.load(FIXTURES / "step3_5" / "flash" / "hf")


def said(turn: int, length: int = 9) -> list[int]:
    """What the user says in a turn."""
    return np.random.default_rng(turn).integers(0, 60, length).tolist()


def talk(model: specjax.Model, chat: Session, turns: int, options: specjax.GenerateOptions) -> Session:
    """Turns in which nothing is taken back; each is compared with a generation without a session."""
    conversation: list[int] = []
    for turn in range(turns):
        before = len(chat.tokens)
        conversation += said(turn)
        reply, chat = chat.generate(conversation)
        assert reply.tokens == model.generate(conversation, options).tokens
        assert chat.reuse is not None
        assert chat.reuse.reused == before
        assert chat.reuse.fed == len(conversation) - before
        conversation += reply.tokens
    return chat


@pytest.mark.parametrize("draft", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_ten_turns_feed_only_what_is_new(hybrid: specjax.Model, draft: int) -> None:
    options = specjax.GenerateOptions(max_tokens=8, draft=draft, ignore_eos=True)
    talk(hybrid, hybrid.session(options, slots=256), 10, options)


def test_turns_reuse_quantized_caches(dense: specjax.Model) -> None:
    options = specjax.GenerateOptions(max_tokens=8, draft=0, ignore_eos=True, kv_type_k="q8_0", kv_type_v="turbo3")
    talk(dense, dense.session(options, slots=256), 2, options)


def test_a_prompt_that_changes_the_reply_goes_back_to_the_prompt_before(hybrid: specjax.Model) -> None:
    """As when a chat template writes the model's turn otherwise than the model did."""
    options = specjax.GenerateOptions(max_tokens=8, draft=3, ignore_eos=True)
    chat = hybrid.session(options, slots=256)
    first, chat = chat.generate(said(0))
    changed = [*said(0), *first.tokens[:3], *said(1)]
    reply, after = chat.generate(changed)
    assert reply.tokens == hybrid.generate(changed, options).tokens
    assert after.reuse is not None
    assert (after.reuse.reused, after.reuse.fed) == (9, len(changed) - 9)
    assert after.reuse.shared >= 9 + 3
    again, _ = chat.generate([*said(0), *first.tokens, *said(2)])
    assert again.tokens == hybrid.generate([*said(0), *first.tokens, *said(2)], options).tokens, "the fork is spoilt"


@pytest.mark.parametrize(
    ("name", "draft"), [("hybrid", 3), pytest.param("sliding", 2, marks=pytest.mark.slow), ("dense", 0)]
)
def test_a_session_can_be_forked_wherever_one_likes_and_as_often(
    name: str, draft: int, request: pytest.FixtureRequest
) -> None:
    """What a turn starts from is consumed by it, so that every turn needs a copy of its own."""
    model = request.getfixturevalue(name)
    options = specjax.GenerateOptions(max_tokens=8, draft=draft, ignore_eos=True)
    first, chat = model.session(options, slots=256).generate(said(0))
    for prompt in ([*said(0), *first.tokens[:3], *said(1)], [*said(0), *first.tokens, *said(2)]):
        (reply, after), (again, after_again) = chat.generate(prompt), chat.generate(prompt)
        assert again.tokens == reply.tokens == model.generate(prompt, options).tokens
        assert after_again.reuse == after.reuse
        assert after.reuse is not None
        assert after.reuse.reused > 0


def test_without_a_budget_for_snapshots_everything_is_computed_again(hybrid: specjax.Model) -> None:
    options = specjax.GenerateOptions(max_tokens=8, draft=3, ignore_eos=True)
    chat = hybrid.session(options, slots=256, point_bytes=0)
    _, chat = chat.generate(said(0))
    assert chat.memory is not None
    assert chat.memory.points == ()
    prompt = [*said(0), *said(1)]
    reply, chat = chat.generate(prompt)
    assert reply.tokens == hybrid.generate(prompt, options).tokens
    assert chat.reuse is not None
    assert (chat.reuse.reused, chat.reuse.fed) == (0, len(prompt))
    assert chat.reuse.shared >= 9


def test_full_attention_can_be_cut_anywhere(dense: specjax.Model) -> None:
    options = specjax.GenerateOptions(max_tokens=8, draft=0, ignore_eos=True)
    chat = dense.session(options, slots=256)
    first, chat = chat.generate(said(0, 40))
    for prompt in ([*said(0, 40)[:23], 1, 2], said(0, 40), [*said(0, 40), *first.tokens[:4], 9, 9, 9]):
        reply, after = chat.generate(prompt)
        assert reply.tokens == dense.generate(prompt, options).tokens
        assert after.reuse is not None
        assert after.reuse.reused == min(after.reuse.shared, len(prompt) - 1)


@pytest.mark.slow
@pytest.mark.parametrize("draft", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_ring_that_wrapped_is_used_as_far_as_it_reaches(sliding: specjax.Model, draft: int) -> None:
    options = specjax.GenerateOptions(max_tokens=40, draft=draft, ignore_eos=True)
    chat = talk(sliding, sliding.session(options, slots=1024), 10, options)
    far_back = [*chat.tokens[:30], *said(99)]
    reply, after = chat.generate(far_back)
    assert reply.tokens == sliding.generate(far_back, options).tokens
    assert after.reuse is not None
    assert after.reuse.fed == len(far_back), "the window of position 30 was overwritten long ago"


def test_a_full_session_says_so(dense: specjax.Model) -> None:
    chat = dense.session(slots=256, draft=0, ignore_eos=True)
    with pytest.raises(specjax.PromptError, match="room for 256"):
        chat.generate([1] * 256)
    reply, _ = chat.generate([1] * 250, max_tokens=20)
    assert reply.finish_reason == "context"
    assert len(reply.tokens) == 6


def test_a_turn_cannot_change_what_the_state_was_made_for(hybrid: specjax.Model) -> None:
    session = hybrid.session(draft=1, kv_type_k="q8_0", rollback="replay")
    with pytest.raises(ValueError, match="draft is 2, but the state of this session was made for 1 drafts"):
        session.generate([1, 2, 3], draft=2)
    with pytest.raises(ValueError, match="kv_type_k is 'f32', but the state of this session was made for 'q8_0'"):
        session.generate([1, 2, 3], kv_type_k="f32")
    with pytest.raises(ValueError, match="rollback is 'snapshot', but the state"):
        session.generate([1, 2, 3], rollback="snapshot")


def test_more_slots_than_context_and_a_debt_of_bytes_are_refused(dense: specjax.Model) -> None:
    with pytest.raises(ValueError, match="point_bytes is -1"):
        dense.session(point_bytes=-1)
    with pytest.raises(ValueError, match="the model's context"):
        dense.session(slots=10**6)
