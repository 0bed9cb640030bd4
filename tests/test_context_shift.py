"""Conversations that outgrow their slots: what is dropped, what stays, and what is said when nothing can be dropped."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax.decoding.random import Purpose, gumbel
from specjax.runtime.memory import CutLimits
from specjax.sessions.context_shift import contiguous_from
from specjax.sessions.session import Reuse, Session
from specjax.state import Cut, Ring

FIXTURES = Path(__file__).parent / "fixtures"
SLOTS, KEEP = 512, 6
GREEDY = specjax.GenerateOptions(max_tokens=700, draft=0, ignore_eos=True, margins=True)
DRAFTERS = {
    "ngram": "ngram",
    "itself": "dense/qwen3/hf",
    "assistant": "gemma4/edge/assistant",
    "heads": None,
    "several": (specjax.NGram(shortest=3), "mtp"),
}
TARGETS = {
    "ngram": "dense/qwen3/hf",
    "itself": "dense/qwen3/hf",
    "assistant": "gemma4/edge/hf",
    "heads": "step3_5/flash/hf",
    "several": "step3_5/flash/hf",
}
HALF = (SLOTS - KEEP) // 2


@cache
def model(drafter: str) -> specjax.Model:
    name = DRAFTERS[drafter]
    source = FIXTURES / name if name and "/" in name else name
    return specjax.load(FIXTURES / TARGETS[drafter], drafter=source)


def said(turn: int, length: int = 9) -> list[int]:
    """What the user says in a turn."""
    return np.random.default_rng(turn).integers(0, 60, length).tolist()


def session(drafter: str, draft: int = 0) -> Session:
    return model(drafter).session(replace(GREEDY, draft=draft), slots=SLOTS, when_full="shift", keep=KEEP)


def prompt_of(drafter: str) -> list[int]:
    """A prompt whose continuation has no near-ties."""
    return said(7 if drafter == "assistant" else 5, 20)


@cache
def plain(drafter: str) -> tuple[specjax.Generation, Session]:
    """A reply of more tokens than there are slots."""
    reply, chat = session(drafter).generate(prompt_of(drafter))
    assert reply.margins is not None
    assert min(reply.margins) > 5e-4, "near-ties: equality would hang on rounding"
    return reply, chat


@pytest.mark.parametrize(
    ("drafter", "draft"),
    [
        ("ngram", 2),
        pytest.param("itself", 1, marks=pytest.mark.slow),
        pytest.param("assistant", 2, marks=pytest.mark.slow),
        pytest.param("heads", 3, marks=pytest.mark.slow),
        pytest.param("several", 5, marks=pytest.mark.slow),  # more than the heads can make
    ],
)
def test_a_reply_drops_tokens_as_often_as_it_must_with_drafts_as_without(drafter: str, draft: int) -> None:
    want, without = plain(drafter)
    got, chat = session(drafter, draft).generate(prompt_of(drafter))
    assert (want.finish_reason, len(want.tokens)) == ("length", 700)
    assert got.tokens == want.tokens
    assert chat.cuts == without.cuts == (Cut(KEEP, HALF),)
    assert chat.tokens == Cut(KEEP, HALF).left_of([*prompt_of(drafter), *got.tokens])[:-1]
    assert chat.conversation == (*prompt_of(drafter), *got.tokens)
    if drafter == "itself":
        assert got.stats.accepted == got.stats.drafted, "the target drafting for itself is always right"


@pytest.mark.parametrize("drafter", ["ngram", pytest.param("heads", marks=pytest.mark.slow)])
def test_the_next_turn_goes_on_with_the_whole_conversation_and_drops_more(drafter: str) -> None:
    _, chat = plain(drafter)
    prompt = [*chat.conversation, *said(4)]
    reply, after = chat.generate(prompt, max_tokens=8)
    assert after.reuse is not None
    assert after.reuse == Reuse(len(chat.tokens), len(chat.tokens), len(prompt) - HALF - len(chat.tokens))
    long = [*prompt, *said(5, 100)]
    assert len(long) - HALF > SLOTS
    _, later = chat.generate(long, max_tokens=8)
    assert later.cuts[1].drop == (len(chat.tokens) - KEEP) // 2
    assert later.tokens == later.cuts[1].left_of(later.cuts[0].left_of(later.conversation))[:-1]
    again, _ = chat.generate(prompt, max_tokens=8)
    assert again.tokens == reply.tokens, "the fork is spoilt"


def test_a_prompt_may_also_begin_with_what_the_caches_hold() -> None:
    _, chat = plain("ngram")
    prompt = [*chat.tokens, *chat.conversation[-1:], *said(4)]
    reply, after = chat.generate(prompt, max_tokens=8)
    assert after.reuse is not None
    assert after.reuse.reused == len(chat.tokens)
    assert reply.tokens == chat.generate([*chat.conversation, *said(4)], max_tokens=8)[0].tokens


@pytest.mark.parametrize(("drafter", "draft"), [("ngram", 0), pytest.param("heads", 3, marks=pytest.mark.slow)])
def test_shifting_by_hand_makes_room_and_leaves_the_old_session(drafter: str, draft: int) -> None:
    options = replace(GREEDY, draft=draft, max_tokens=40)
    chat = model(drafter).session(options, slots=SLOTS)
    _, chat = chat.generate(said(6, 400))
    shorter = chat.shift(keep=2, drop=100).shift(keep=30, drop=50)
    assert shorter.tokens == Cut(30, 50).left_of(Cut(2, 100).left_of(chat.tokens))
    assert shorter.memory is not None
    assert int(shorter.memory.state.length[0]) == len(chat.tokens) - 150
    grown = [*chat.conversation, *said(7, 90)]
    with pytest.raises(specjax.PromptError, match="room for 512"):
        chat.generate(grown)
    reply, after = shorter.generate(grown)
    assert len(reply.tokens) == 40
    assert after.reuse is not None
    assert after.reuse.reused == len(shorter.tokens)
    again, _ = chat.generate([*chat.conversation, 1])
    assert again.tokens == chat.generate([*chat.conversation, 1])[0].tokens


@pytest.mark.slow
def test_what_was_kept_at_the_start_is_reused_by_another_conversation_where_caches_still_hold_it() -> None:
    for drafter, reused in (("ngram", 8), ("heads", 0)):
        chat = model(drafter).session(replace(GREEDY, max_tokens=4), slots=SLOTS)
        _, chat = chat.generate(said(6, 400))
        chat = chat.shift(keep=8, drop=50)
        prompt = [*said(6, 400)[:8], *said(8)]
        reply, after = chat.generate(prompt)
        assert after.reuse is not None
        assert after.reuse.reused == reused, "a ring that went round holds its window and no start"
        assert reply.tokens == session(drafter).generate(prompt, max_tokens=4)[0].tokens
        assert after.cuts == ()


def test_a_ring_that_went_back_remembers_how_far_it_was_written() -> None:
    options = replace(GREEDY, max_tokens=4)
    chat = model("heads").session(options, slots=SLOTS)
    for length in (180, 300):  # in pieces of one size, as all that follows
        _, chat = chat.generate(said(6, 300)[:length])
    for length, reused in ((100, 100), (40, 0)):
        prompt = [*said(6, 300)[:length], *said(7, 62)]
        reply, chat = chat.generate(prompt)
        assert chat.reuse is not None
        assert chat.reuse.reused == reused, "positions 0 to 23 were overwritten by 280 to 303"
        assert reply.tokens == session("heads").generate(prompt, max_tokens=4)[0].tokens


def indifferent(params: Any) -> Any:
    """The parameters of a target with the final norm at zero: all logits are equal, and draws are noise."""
    return {**params, "norm": {"weight": jnp.zeros_like(params["norm"]["weight"])}}


@pytest.mark.parametrize(("drafter", "draft"), [pytest.param("ngram", 0, marks=pytest.mark.slow), ("itself", 2)])
def test_draws_are_keyed_by_the_position_in_the_whole_text(drafter: str, draft: int) -> None:
    """After a shift, too: none is used twice, and drafts are drawn with the noise of the position they are for."""
    params = {"target": indifferent(model(drafter).params["target"])}
    if drafter == "itself":
        params["draft"] = {"target": indifferent(model(drafter).params["draft"]["target"])}
    even = replace(model(drafter), params=params)
    warm = replace(GREEDY, temperature=1.0, seed=5, accept="coupled", draft=draft, margins=False)
    chat = even.session(warm, slots=SLOTS, when_full="shift")
    for turn, length in enumerate((600, 40)):
        prompt = [*chat.conversation, *said(turn, 20)]
        reply, chat = chat.generate(prompt, max_tokens=length)
        position = np.arange(len(prompt), len(prompt) + length)[None]
        noise = gumbel(5, np.zeros(1, np.int32), position, Purpose.TOKEN, even.target.vocab_size)
        assert reply.tokens == noise[0].argmax(axis=-1).tolist()
        assert reply.stats.accepted == reply.stats.drafted
    assert chat.cuts


def test_recurrent_layers_refuse_to_shift() -> None:
    qwen = specjax.load(FIXTURES / "qwen3_5" / "dense" / "hf")
    with pytest.raises(specjax.SpecjaxError, match=r"cannot drop the oldest tokens .* recurrent layers"):
        qwen.session(when_full="shift")
    with pytest.raises(specjax.SpecjaxError, match="recurrent layers"):
        qwen.session().shift(drop=8)
    small = specjax.load(FIXTURES / "dense" / "qwen3" / "hf", drafter=FIXTURES / "qwen3_5" / "dense" / "hf")
    with pytest.raises(specjax.SpecjaxError, match="small model of which the same is true: its recurrent"):
        small.session(when_full="shift", draft=2)
    small.session(when_full="shift", draft=0)


def test_dropping_too_much_is_refused() -> None:
    for drafter, draft, least in (("ngram", 0, 1), ("ngram", 2, 3), ("heads", 3, 24 + 4)):
        chat = model(drafter).session(replace(GREEDY, draft=draft), slots=SLOTS)
        with pytest.raises(specjax.SpecjaxError, match="holds no tokens yet"):
            chat.shift(drop=1)
        chat = chat.feed(said(6, 480))
        most = len(chat.tokens) - 10 - least
        for keep, drop in ((10, most + 1), (10, 600), (600, 1)):
            with pytest.raises(specjax.SpecjaxError, match=f"at least {least} must be left"):
                chat.shift(keep=keep, drop=drop)
        assert len(chat.shift(keep=10, drop=most).tokens) == 10 + least
        for keep, drop in ((-1, 5), (0, 0)):
            with pytest.raises(specjax.SpecjaxError, match="keep must be at least 0, and drop at least 1"):
                chat.shift(keep=keep, drop=drop)


def test_prompts_that_dropping_cannot_make_fit_are_refused() -> None:
    _, chat = session("ngram").generate(said(6, 300), max_tokens=4)
    with pytest.raises(specjax.PromptError, match="303 of them are in its caches"):
        chat.generate([*chat.conversation, *said(7, 510)])
    with pytest.raises(specjax.PromptError, match="0 of them are in its caches"):
        session("ngram").generate(said(6, 600))


def test_settings_out_of_range_are_refused() -> None:
    for wrong, message in (
        ({"when_full": "forget"}, "known are 'error', 'shift'"),
        ({"keep": -1}, "it must be at least 0"),
        ({"when_full": "shift", "keep": 511}, "nothing to drop"),
    ):
        with pytest.raises(ValueError, match=message):
            model("ngram").session(slots=SLOTS, **wrong)


def test_rings_limit_what_can_be_dropped_and_gone_back_to() -> None:
    limits = CutLimits(rows=4, rings=(Ring(280, 24),), only_caches=True)
    assert limits.after_writing(276).shortest == 0, "it has not gone round"
    assert limits.after_writing(300).shortest == 300 + 4 - 280 + 24 + 1
    assert limits.after_writing(300).after_writing(100).shortest == limits.after_writing(300).shortest
    assert limits.after_writing(276).cut_of_oldest(276, 6) == Cut(6, 135)
    assert limits.after_writing(300).cut_of_oldest(300, 6, at_least=300 - 6 - 28) == Cut(6, 266)
    assert limits.after_writing(300).cut_of_oldest(300, 6, at_least=300 - 6 - 27) is None
    assert limits.after_writing(300).after_cut(Cut(6, 100)).shortest == 6 + 24
    assert limits.after_writing(900).after_cut(Cut(6, 100)).shortest == limits.after_writing(900).shortest - 100
    assert contiguous_from([Cut(4, 10), Cut(0, 3)]) == 1
    assert contiguous_from([Cut(4, 10), Cut(9, 3)]) == 9
