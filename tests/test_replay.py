"""What a trace says of other settings, against runs with these settings; and what it shows."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from small_model import write_small_model

import specjax
from specjax.traces import replay
from specjax.traces.html import coloured
from specjax.traces.plots import KINDS, kind_of
from specjax.traces.trace import Trace

PROMPTS = ["def add(a, b):", "class A", "import os", "x = 1\ny =", "return", "# de", "for i in", "while"]
HELD_OUT = ["with open(", "    def", "print(", "a, b =", "# the", "if x:", "del ", "try:"]
DEPTH = 5
SAMPLED = {"temperature": 0.7, "max_tokens": 90, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> specjax.Model:
    return specjax.load(write_small_model(tmp_path_factory.mktemp("model") / "small.gguf"))


def traced(model: specjax.Model, prompts: list[str], draft: int | specjax.DraftConfig) -> Trace:
    """Texts of plain sampling, which are the same for all numbers of drafts.

    A text beside them has the most drafts, so that all numbers are data of one program.
    """
    drafts = [*[draft] * len(prompts), DEPTH]
    batch = model.generate_batch([*prompts, "pass"], draft=drafts, trace=True, seed=3, accept="coupled", **SAMPLED)
    return Trace.join([each.trace for each in batch[:-1]])


@pytest.fixture(scope="module")
def trace(model: specjax.Model) -> Trace:
    return traced(model, PROMPTS, DEPTH)


@pytest.mark.parametrize(("k", "refused"), [(1, 0), pytest.param(3, 0, marks=pytest.mark.slow), (DEPTH, 0.4)])
def test_predictions_agree_with_runs_within_their_errors(
    model: specjax.Model, trace: Trace, k: int, refused: float
) -> None:
    """`refused` is the share of the trace's drafts that the threshold of confidence refuses."""
    p_min = float(np.nanquantile(trace.confidence, refused)) if refused else 0.0
    told, draft = trace.what_if(k, p_min), specjax.DraftConfig(n_max=k, p_min=p_min)
    same, others = traced(model, PROMPTS, draft), traced(model, HELD_OUT, draft)
    measured = same.n_emitted.mean()
    assert abs(told.tokens_per_round - measured) < min(3 * told.tokens_per_round_error, 0.05 * measured)
    assert told.drafts_per_round == pytest.approx(same.n_drafted.mean(), rel=0.1)
    error = np.hypot(told.tokens_per_round_error, others.n_emitted.std() / np.sqrt(len(others)))
    assert abs(told.tokens_per_round - others.n_emitted.mean()) < 3 * error


@pytest.mark.slow
@pytest.mark.parametrize("accept", ["rejection", "block"])
def test_other_rules_agree_with_runs_within_their_errors(model: specjax.Model, trace: Trace, accept: str) -> None:
    """The trace was recorded by the coupled rule. Texts of the other rules are others, of the same distribution."""
    told = trace.what_if(DEPTH, accept=accept)
    assert told.tokens_per_round > 1.05 * trace.n_emitted.mean(), "the coupled rule accepts fewer drafts"
    runs = model.generate_batch([*PROMPTS, *HELD_OUT], **SAMPLED, draft=DEPTH, trace=True, accept=accept, seed=7)
    own = Trace.join([each.trace for each in runs])
    error = np.hypot(told.tokens_per_round_error, own.n_emitted.std() / np.sqrt(len(own)))
    assert abs(told.tokens_per_round - own.n_emitted.mean()) < 3 * error
    assert own.what_if(DEPTH).tokens_per_round == pytest.approx(own.n_emitted.mean())


def test_chances_are_those_of_the_rules_given_the_text() -> None:
    """Two drafts of three tokens: all drafts that can be drawn, with the probabilities that the rules accept them."""
    generator = np.random.default_rng(0)
    (p1, p2), (q1, q2) = generator.dirichlet([1, 1, 1], (2, 2))
    joint = {rule: np.zeros((3, 3, 3)) for rule in ("rejection", "block")}  # of the drafts, and how many stand
    for i, j in np.ndindex(3, 3):
        drawn = q1[i] * q2[j]
        one, two = min(1, p1[i] / q1[i]), min(1, p2[j] / q2[j])
        joint["rejection"][i, j] = drawn * np.array([1 - one, one * (1 - two), one * two])
        first = min(1, p1[i] / q1[i])
        second = min(1, first * p2[j] / q2[j])
        left = np.maximum(first * p2 - q2, 0).sum()
        passes = left / (left + 1 - first) if first < 1 else 1.0
        joint["block"][i, j] = drawn * np.array([(1 - second) * (1 - passes), (1 - second) * passes, second])
    for accept, stand in joint.items():
        for i, j in np.ndindex(3, 3):
            at_least_one, both = stand[i, :, 1:].sum() / p1[i], stand[i, j, 2] / (p1[i] * p2[j])
            chances = replay._chances(np.array([q1[i] / p1[i], q2[j] / p2[j]]), accept)
            assert np.cumprod(chances) == pytest.approx([at_least_one, both])


def test_the_settings_of_the_trace_give_the_trace_itself(trace: Trace) -> None:
    told = trace.what_if(DEPTH)
    assert told.tokens_per_round == pytest.approx(trace.n_emitted.mean())
    assert told.drafts_per_round == pytest.approx(trace.n_drafted.mean(), rel=0.02), "but for the end of the texts"
    assert told.seconds_per_round == pytest.approx(np.median(trace.seconds))
    assert told.tokens_per_second == pytest.approx(told.tokens_per_round / told.seconds_per_round)
    assert trace.what_if(0).tokens_per_round == 1
    assert trace.what_if(2).seconds_per_round is None
    assert trace.what_if(2, seconds=0.5).tokens_per_second == pytest.approx(trace.what_if(2).tokens_per_round * 2)


def test_an_error_is_that_of_repeated_measurements(trace: Trace) -> None:
    """Texts that are left out one at a time move the mean by what the error says."""
    numbers = [text.number for text in trace.texts]
    means = [trace[trace.text != number].what_if(2).tokens_per_round for number in numbers]
    jackknife = np.sqrt((len(means) - 1) / len(means) * ((means - np.mean(means)) ** 2).sum())
    assert 0.4 < trace.what_if(2).tokens_per_round_error / jackknife < 2.5


def test_all_or_nothing_is_told_exactly(trace: Trace) -> None:
    all_stand = trace[(trace.n_accepted == DEPTH) & (trace.n_emitted == DEPTH + 1)]
    assert len(all_stand) > 2
    none = trace[(trace.n_accepted == 0) & (trace.n_drafted == DEPTH)]
    assert none.what_if(3).tokens_per_round == 1
    assert all_stand.what_if(2).tokens_per_round == pytest.approx(3, rel=0.2)
    assert none.what_if(1, n_min=2).drafts_per_round == 0


def test_a_short_text_has_an_error_too(model: specjax.Model) -> None:
    short = model.generate("def", max_tokens=24, draft=3, trace=True, ignore_eos=True).trace
    assert len(short) < 32
    assert np.isfinite(short.what_if(1).tokens_per_round_error)
    greedy = short.what_if(2)
    assert short.what_if(2, accept="block") == replace(greedy, accept="block"), "all rules agree on greedy texts"


def test_what_a_trace_does_not_tell_is_refused(trace: Trace) -> None:
    with pytest.raises(ValueError, match="no more than 5 drafts"):
        trace.what_if(6)
    with pytest.raises(ValueError, match=r"k is 2.5, but"):
        trace.what_if(2.5)
    with pytest.raises(ValueError, match="p_min is 2"):
        trace.what_if(2, p_min=2)
    with pytest.raises(ValueError, match=r"p_min is 'x' and n_min is 0"):
        trace.what_if(2, p_min="x")
    with pytest.raises(ValueError, match="accept is 'coupled'; a trace tells what 'rejection' or 'block'"):
        trace.what_if(2, accept="coupled")
    with pytest.raises(ValueError, match="seconds is 0; give the time of a round"):
        trace.what_if(2, seconds=0)
    with pytest.raises(ValueError, match="no rounds"):
        trace[:0].what_if(0)
    drafted = replace(trace, texts=(replace(trace.texts[0], settings={"draft": {"n_max": 5, "p_min": 0.9}}),))
    with pytest.raises(ValueError, match=r"texts \[0\] were drafted with p_min"):
        drafted.what_if(2)
    with pytest.raises(ValueError, match="needs the confidence"):
        replace(trace, confidence=np.full_like(trace.confidence, np.nan)).what_if(2, p_min=0.5)
    with pytest.raises(ValueError, match="needs the probabilities"):
        replace(trace, p=np.full_like(trace.p, np.nan)).what_if(2, accept="block")


class Tokens(HTMLParser):
    """The text of HTML, and the titles of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.text, self.titles = "", list[str]()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        del tag
        self.titles += [value for name, value in attrs if name == "title"]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_html_shows_the_text_and_how_each_token_was_made(model: specjax.Model) -> None:
    generation = model.generate("def add(a, b):", max_tokens=40, trace=True)
    parser, whole = Tokens(), Tokens()
    parser.feed(coloured(generation.trace, 0))
    assert parser.text == generation.text
    accepted = [title for title in parser.titles if "accepted" in title]
    refused = [title for title in parser.titles if "instead, refused" in title]
    assert len(accepted) == generation.stats.accepted
    assert len(refused) == (generation.trace.n_accepted < generation.trace.n_drafted).sum()
    assert all("confidence 0." in title and ", p 0." in title for title in accepted)
    whole.feed(generation._repr_html_())
    for shown in (generation, replace(generation, trace=None)):
        assert re.search(r"<pre[^>]*><span", shown._repr_html_()), "a line break at the start would be swallowed"
    assert "chosen instead of a draft" in whole.text
    assert "tokens per round" in whole.text
    stopped = model.generate("def add(a, b):", max_tokens=40, trace=True, stop=generation.text[10:13])
    assert stopped.finish_reason == "stop"
    cut = Tokens()
    cut.feed(stopped._repr_html_())
    assert cut.text.startswith(stopped.text + "accepted draft")
    whole.feed(Trace.join([generation.trace] * 22)._repr_html_())
    assert "and 2 more" in whole.text


@pytest.mark.parametrize("text", ["a\U0001f600b", "\u6f22\u5b57", "x\u00e9", "\U0001f600"])
def test_a_character_of_several_tokens_is_shown_once_it_is_whole(model: specjax.Model, text: str) -> None:
    """Each token is a byte. The tokens of a trace are replaced by those of a text, and then some are missing."""
    trace = model.generate("def add(a, b):", max_tokens=40, trace=True).trace
    assert trace is not None
    bytes_ = list((text * 40).encode())
    first, tokens = bytes_[0], trace.tokens.copy()
    emitted = np.arange(tokens.shape[1]) < trace.n_emitted[:, None]
    tokens[emitted] = bytes_[1 : 1 + emitted.sum()]
    pieces = {token: bytes([token]) for token in range(256)}
    texts = (replace(trace.texts[0], first=first),)
    parser = Tokens()
    parser.feed(coloured(replace(trace, texts=texts, tokens=tokens, pieces=pieces), 0))
    assert parser.text == bytes(bytes_[: 1 + emitted.sum()]).decode(errors="replace")
    about = "; ".join(parser.titles)
    assert about.count("accepted") == trace.n_accepted.sum()
    assert about.count("instead, refused") == (trace.n_accepted < trace.n_drafted).sum()


def test_the_figure_shows_the_numbers_of_the_trace(trace: Trace, tmp_path: Path) -> None:
    figure = trace.plot()
    by_place, survival = figure.axes[:2]
    drafts = trace.to_pandas("drafts")
    heights = [bar.get_height() for bar in by_place.patches]
    assert heights == pytest.approx(drafts[drafts.reached].groupby("place").accepted.mean().tolist())
    assert survival.lines[0].get_ydata()[1] == pytest.approx((trace.n_accepted[trace.n_drafted > 0] > 0).mean())
    assert len(figure.axes) == 6
    figure.savefig(tmp_path / "trace.png")
    trace[:0].plot().savefig(tmp_path / "empty.png")
    kinds = {
        "  ": "white space",
        "12": "number",
        "name": "part of a word",
        " name": "word",
        "):": "punctuation",
        "1a": "other",
    }
    assert {string: kind_of(string) for string in kinds} == kinds
    assert set(kinds.values()) == set(KINDS)
