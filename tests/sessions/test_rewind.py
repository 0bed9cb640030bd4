"""A session that goes back stands where a session stands that never went further."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_models import relative_rms

import specjax
from specjax.runtime.request import Update
from specjax.sessions.beginning import Reuse
from specjax.sessions.session import Session

FIXTURES = Path(__file__).parents[1] / "fixtures"
GREEDY = specjax.GenerateOptions(max_tokens=12, ignore_eos=True)
COUPLED = replace(GREEDY, temperature=0.9, top_k=40, seed=11, accept="coupled")
SLOTS = 512
FILES = {
    "hybrid": ("qwen3_5/dense/hf", None, 40),
    "rings": ("gemma4/dense/hf", "gemma4/dense/assistant", 272),  # rings of 280 slots go round
    "plain": ("dense/qwen3/hf", "ngram", 40),
}


@cache
def model(name: str) -> specjax.Model:
    target, drafter, _ = FILES[name]
    return specjax.load(FIXTURES / target, drafter=FIXTURES / drafter if drafter and "/" in drafter else drafter)


def said(turn: int, length: int = 9) -> list[int]:
    """What the user says in a turn."""
    return np.random.default_rng(turn).integers(0, 60, length).tolist()


@dataclass
class Rounds:
    """Lengths of a conversation at which a round ended."""

    length: int
    ends: list[int]

    def __call__(self, update: Update) -> None:
        if update.record is None:
            counts = [1]
        else:
            counts = update.record.rounds.n_emitted[: int(update.record.n_rounds), update.row].tolist()
        for count in counts:
            self.length += count
            self.ends.append(self.length)


@cache
def talked(name: str, draft: int, options: specjax.GenerateOptions) -> tuple[Session, tuple[int, ...]]:
    """A session of two turns, and where its rounds ended."""
    chat, ends = model(name).session(options, draft=draft, slots=SLOTS), []
    for turn, length in enumerate((FILES[name][2], 9)):
        prompt = [*chat.conversation, *said(turn, length)]
        rounds = Rounds(len(prompt), [])
        _, chat = chat.generate(prompt, rounds)
        ends += rounds.ends
    return chat, tuple(ends)


def places(chat: Session, ends: tuple[int, ...]) -> Iterator[int]:
    """Lengths to go back to: in prompts and replies, across turns, and at and around the ends of rounds."""
    first, second = chat.turns
    middle = ends[len(ends) // 4]
    found = {1, 7, first.prompt, first.prompt + 1, first.end, first.end + 4, second.prompt, second.prompt + 1}
    yield from sorted(found | {middle - 1, middle, middle + 1, ends[-2], second.end - 1})


@pytest.mark.parametrize(
    ("name", "draft", "options"),
    [
        ("hybrid", 3, GREEDY),
        pytest.param("hybrid", 0, COUPLED, marks=pytest.mark.slow),
        pytest.param("rings", 3, COUPLED, marks=pytest.mark.slow),
        pytest.param("rings", 0, GREEDY, marks=pytest.mark.slow),
        pytest.param("plain", 3, GREEDY, marks=pytest.mark.slow),
        ("plain", 0, GREEDY),
        pytest.param("hybrid", 0, GREEDY, marks=pytest.mark.slow),
        pytest.param("hybrid", 3, COUPLED, marks=pytest.mark.slow),
        pytest.param("hybrid", 3, replace(COUPLED, accept="rejection"), marks=pytest.mark.slow),
        pytest.param("hybrid", 3, replace(GREEDY, rollback="snapshot"), marks=pytest.mark.slow),
        pytest.param("rings", 3, GREEDY, marks=pytest.mark.slow),
        pytest.param("rings", 0, COUPLED, marks=pytest.mark.slow),
        pytest.param("plain", 3, COUPLED, marks=pytest.mark.slow),
        pytest.param("plain", 0, COUPLED, marks=pytest.mark.slow),
    ],
)
def test_what_follows_is_what_a_fresh_session_says(name: str, draft: int, options: specjax.GenerateOptions) -> None:
    chat, ends = talked(name, draft, options)
    assert chat.memory is not None
    points, whole = [point.length for point in chat.memory.points], len(chat.conversation)
    assert len(points) == 4
    for place in places(chat, ends):
        text = chat.conversation[:place]
        there = chat.at(place)
        assert (there.conversation, there.tokens) == (text, text[:-1])
        assert there.memory is not None
        assert int(there.memory.state.length[0]) == place - 1
        reply, after = there.generate(text, max_tokens=7)
        fresh, _ = model(name).session(options, draft=draft, slots=SLOTS).generate(text, max_tokens=7)
        assert reply.tokens == fresh.tokens, f"after {place} of {whole} tokens"
        assert reply.stats == fresh.stats, "the drafter stands elsewhere"
        assert after.reuse == Reuse(place - 1, place - 1, 1)
        nearest = max((point for point in points if point < place), default=0)
        if name == "plain" and not draft:
            nearest = place - 1
        elif name == "rings":
            shortest = chat.memory.limits.shortest
            nearest = 0 if place - 1 < shortest else nearest if draft else place - 1
        assert there.reuse == Reuse(place, nearest, place - 1 - nearest)
    assert chat.at(whole) is chat
    assert chat.rewind(5).conversation == chat.conversation[:-5]
    prompt = [*chat.conversation, *said(9)]
    fresh, _ = model(name).session(options, draft=draft, slots=SLOTS).generate(prompt)
    assert chat.generate(prompt)[0].tokens == fresh.tokens, "going back has spoilt the session"


def test_the_state_is_that_of_a_fresh_session() -> None:
    """Recurrent states, inputs of convolutions, and the hidden row that waits for the head."""
    chat, ends = talked("hybrid", 3, GREEDY)
    empty = model("hybrid").session(GREEDY, draft=3, slots=SLOTS)
    for place in (20, chat.turns[0].prompt + 1, ends[2], chat.turns[1].end - 1):
        states = [session.at(place).memory for session in (chat, empty.feed(chat.conversation[:place]))]
        kept = [jax.tree.leaves(memory.state.kept().layers) for memory in states if memory is not None]
        waiting = [memory.state.drafter.hidden[:, -1] for memory in states if memory is not None]
        assert len(kept[0]) == 6, "three gated delta nets"
        for got, want in zip([*kept[0], waiting[0]], [*kept[1], waiting[1]], strict=True):
            assert relative_rms(got, want) < 1e-5


def test_one_can_go_back_again_and_again() -> None:
    chat, _ = talked("hybrid", 3, GREEDY)
    once = chat.rewind(4)
    twice = once.rewind(3)
    assert twice.conversation == chat.conversation[:-7]
    assert once.at(len(twice.conversation)).reuse == twice.reuse
    want = chat.at(len(twice.conversation)).generate(twice.conversation)[0].tokens
    assert twice.generate(twice.conversation)[0].tokens == want
    further = once.generate(once.conversation)[1].at(len(once.conversation))
    assert further.reuse is not None
    assert further.reuse.fed == 0, "the place where it went back to is a point"


def test_turns_end_where_the_session_went_back_to() -> None:
    chat, _ = talked("hybrid", 3, GREEDY)
    first, second = chat.turns
    assert chat.at(second.prompt - 2).turns == (first, (second.prompt - 2, second.prompt - 2))
    assert chat.at(first.end - 3).turns == ((first.prompt, first.end - 3),)
    assert chat.at(0).turns == ()
    fresh = model("hybrid").session(GREEDY, draft=3, slots=SLOTS)
    assert chat.at(0).generate(said(3))[0].tokens == fresh.generate(said(3))[0].tokens


@pytest.mark.parametrize(("name", "draft"), [("hybrid", 3), ("plain", 0)])
def test_a_prompt_is_read_once_for_all_that_follows(name: str, draft: int) -> None:
    empty, prompt = model(name).session(GREEDY, draft=draft, slots=SLOTS), said(5, 30)
    read = empty.feed(prompt)
    assert (read.conversation, read.tokens, read.reuse) == (tuple(prompt), tuple(prompt[:-1]), Reuse(0, 0, 29))
    assert read.turns == ((30, 30),)
    want = empty.generate(prompt)[0].tokens
    for _ in range(2):
        reply, after = read.generate(prompt)
        assert reply.tokens == want
        assert after.reuse == Reuse(29, 29, 1)
        assert after.turns == ((30, 42),)
    longer = read.feed([*prompt, *said(6)])
    assert longer.reuse == Reuse(29, 29, 9)
    assert longer.turns == ((39, 39),)
    assert longer.generate(longer.conversation)[0].tokens == empty.generate(longer.conversation)[0].tokens
    with pytest.raises(specjax.PromptError, match="room for 512"):
        read.feed([1] * 512)
    with pytest.raises(specjax.PromptError, match="empty"):
        read.feed([])


@pytest.mark.parametrize(("name", "draft"), [("hybrid", 3), ("rings", 0), ("plain", 0)])
def test_logits_of_a_session_are_those_of_its_text(name: str, draft: int) -> None:
    chat, _ = talked(name, draft, GREEDY)
    want = model(name).logits(chat.conversation)
    assert relative_rms(chat.next_logits(), want[-1]) < 1e-5
    whole = len(chat.conversation)
    for start, stop in ((-3, None), (chat.turns[0].prompt + 2, whole - 7), (0, 5)):
        assert relative_rms(chat.logits(start, stop), want[start:stop]) < 1e-5
    there = chat.at(20)
    assert relative_rms(there.next_logits(), want[19]) < 1e-5
    assert chat.generate([*chat.conversation, 3])[1].reuse == Reuse(whole - 1, whole - 1, 2), "the session has changed"
    with pytest.raises(ValueError, match="no token"):
        chat.logits(9, 9)


def test_places_outside_the_conversation_are_refused() -> None:
    chat, _ = talked("plain", 0, GREEDY)
    whole = len(chat.conversation)
    for n in (-1, whole + 1):
        with pytest.raises(ValueError, match=f"n is {n}; the conversation has {whole} tokens"):
            chat.rewind(n)
        with pytest.raises(ValueError, match=f"give 0 to {whole}"):
            chat.at(n)
    with pytest.raises(ValueError, match=f"n is 'one'; the conversation has {whole} tokens"):
        chat.rewind("one")
    empty = model("plain").session(GREEDY)
    assert empty.rewind(0) is empty
    for ask in (empty.next_logits, empty.logits):
        with pytest.raises(specjax.SpecjaxError, match="holds no tokens yet"):
            ask()


@pytest.mark.parametrize("draft", [0, pytest.param(3, marks=pytest.mark.slow)])
def test_tokens_that_were_dropped_are_back_before_the_drop_and_gone_after_it(draft: int) -> None:
    """Going back ends where a session stands that stopped there, with what it had dropped by then."""
    empty = model("plain").session(GREEDY, draft=draft, slots=64, when_full="shift", keep=4)
    prompt = said(5, 20)
    _, chat = empty.generate(prompt, max_tokens=60)
    (drop,) = chat.drops
    assert drop.at == 64
    for place in (3, 40, 64, *([] if draft else [65, 66, 74])):
        stood = empty.generate(prompt, max_tokens=place - 20)[1] if place > 20 else empty.feed(prompt[:place])
        there = chat.at(place)
        assert there.conversation == stood.conversation == chat.conversation[:place]
        assert (there.drops, there.tokens) == (stood.drops, stood.tokens)
        assert there.generate(there.conversation)[0].tokens == stood.generate(stood.conversation)[0].tokens
        if place != 65:  # where every slot is taken
            assert relative_rms(there.next_logits(), stood.next_logits()) < 1e-5
    full = empty.generate(prompt, max_tokens=45)[1]
    assert len(full.tokens) == full.slots
    for ask in (full.next_logits, full.logits):
        with pytest.raises(specjax.SpecjaxError, match="all 64 slots are taken"):
            ask()
    assert relative_rms(full.logits(-2, -1)[0], model("plain").logits(full.conversation)[-2]) < 1e-5
    with pytest.raises(specjax.SpecjaxError, match="dropped tokens after 64 tokens, within the span"):
        chat.logits(60, 70)
    prompt = [*chat.conversation, *said(8, 30)]
    read, reply = chat.feed(prompt), chat.generate(prompt, max_tokens=1)[1]
    assert len(read.drops) == 2
    assert (read.drops, read.tokens) == (reply.drops, reply.tokens[:-1])
    later = chat.generate([*chat.conversation, *said(6, 3)], max_tokens=4)[1].at(82)
    assert later.tokens == chat.feed(later.conversation).tokens == drop.cut.left_of(later.conversation)[:-1]
    assert relative_rms(later.next_logits(), chat.feed(later.conversation).next_logits()) < 1e-5
    if draft:
        with pytest.raises(specjax.SpecjaxError, match="has no state from between"):
            chat.at(70)


def test_between_two_drops_nothing_is_to_be_had() -> None:
    empty = model("plain").session(GREEDY, draft=0, slots=64, when_full="shift", keep=4)
    _, chat = empty.generate(said(5, 20), max_tokens=120)
    first, *_, last = chat.drops
    assert first.at < last.at
    with pytest.raises(specjax.SpecjaxError, match="go back to 64 tokens or fewer"):
        chat.at(last.at - 2)
    assert chat.at(first.at).tokens == chat.conversation[: first.at - 1]
    by_hand = empty.generate(said(5, 20))[1].shift(drop=5)
    assert by_hand.rewind(1).tokens == by_hand.conversation[:-2], "it was shifted later than that"
    assert relative_rms(by_hand.logits(-1)[0], by_hand.next_logits()) < 1e-5


@pytest.mark.parametrize(("name", "draft"), [("hybrid", 3), ("hybrid", 0), ("plain", 0)])
def test_after_a_stop_string_a_session_goes_on_from_the_last_token_of_the_text(name: str, draft: int) -> None:
    """The device learns of the end late, and has decoded further by then."""
    chat = model(name).session(GREEDY, draft=draft, slots=SLOTS)
    whole, _ = chat.generate(said(0), max_tokens=40)
    stop = model(name).decode(whole.tokens[4:6])
    assert stop
    reply, after = chat.generate(said(0), max_tokens=40, stop=stop)
    assert reply.finish_reason == "stop"
    assert len(reply.tokens) < 10
    assert after.memory is not None
    assert int(after.memory.state.length[0]) == len(after.tokens) == len(after.conversation) - 1
    prompt = [*after.conversation, *said(1)]
    assert after.generate(prompt)[0].tokens == chat.generate(prompt)[0].tokens


PROGRAM = """
import sys, specjax
chat = specjax.load(sys.argv[1]).load_session(sys.argv[2])
there = chat.at(int(sys.argv[3]))
print(chat.name, *chat.turns, there.reuse, there.generate(there.conversation)[0].tokens)
"""


@pytest.mark.slow
def test_a_saved_session_goes_back_in_another_process_as_here(tmp_path: Path) -> None:
    chat = talked("hybrid", 3, GREEDY)[0].fork("kept")
    chat.save(tmp_path / "chat")
    place = chat.turns[0].prompt + 3
    command = [sys.executable, "-c", PROGRAM, FIXTURES / FILES["hybrid"][0], tmp_path / "chat", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    there = chat.at(place)
    assert there.reuse is not None
    assert there.reuse.fed == 2
    assert done.stdout.strip() == " ".join(
        map(str, [chat.name, *chat.turns, there.reuse, there.generate(there.conversation)[0].tokens])
    ), done.stderr
