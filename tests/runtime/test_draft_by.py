"""Names of drafters, and requests that choose among them."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import jax
import pytest
from small_model import write_small_model

import checkpoints
import specjax
from specjax.errors import PromptError
from specjax.evaluation.evaluate import Evaluation, sift
from specjax.evaluation.prompts import parse_prompts
from specjax.runtime.draft_by import UnknownDrafterError, numbers_of, told_apart
from specjax.runtime.drafters import open_drafters

FIXTURES = Path(__file__).parents[1] / "fixtures"
TEXT = "for i in range(10):\n    print(i)\nfor j in range(10):\n    print(j)\nfor k in range("
UNKNOWN = "draft_by is 'eagle', but the model's drafters are 'ngram', 'mtp'; name one of them"


@cache
def model() -> specjax.Model:
    with tempfile.TemporaryDirectory() as folder:
        path = write_small_model(Path(folder) / "small.gguf", context_length=256)
        return specjax.load(path, drafter=["ngram", "mtp"])


def test_drafters_are_named_as_the_user_named_them() -> None:
    opened = checkpoints.open_checkpoint(FIXTURES / "dense/qwen3/hf", specjax.FAMILIES)
    sources = ["ngram", specjax.NGram(longest=3), FIXTURES / "dense/qwen3/hf", "ngram"]
    assert open_drafters(sources, opened).names == ("ngram", "NGram", "hf", "ngram-2")
    assert open_drafters(str(FIXTURES / "dense/qwen3/hf"), opened).names == ("hf",)
    assert model().drafter_names == ("ngram", "mtp")
    assert specjax.load().drafter_names == ("mtp",)
    assert specjax.load(FIXTURES / "dense/qwen3/hf").drafter_names == ()


def test_equal_names_are_told_apart() -> None:
    assert told_apart(["a", "a-2", "a", "a", "a-2"]) == ("a", "a-2", "a-3", "a-4", "a-2-2")


def test_names_become_numbers_and_all_of_them_no_restriction() -> None:
    known = ("ngram", "eagle", "mtp")
    assert numbers_of(None, known) is None
    assert numbers_of(["mtp", "ngram", "mtp"], known) == (0, 2)
    assert numbers_of(known, known) is None
    assert numbers_of(["mtp"], ["mtp"]) is None, "a drafter of one's own may never have heard of numbers"


def test_prompts_of_a_batch_choose_their_drafters_and_nothing_new_is_compiled() -> None:
    free = model().generate_batch([TEXT] * 3, max_tokens=48)
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    chosen = model().generate_batch([TEXT] * 3, max_tokens=48, draft_by=["ngram", "mtp", ["mtp", "ngram"]])
    assert not compiled
    assert [each.tokens for each in chosen] == [free[0].tokens] * 3
    by_ngrams, by_head, by_both = (each.stats.drafted_by_drafter for each in chosen)
    assert by_ngrams[0] > 0
    assert sum(by_ngrams[1:]) == 0
    assert by_head[0] == 0
    assert by_head[1] > 0
    assert by_both == free[0].stats.drafted_by_drafter
    assert min(by_both) > 0


def test_turns_of_a_session_choose_their_drafters(tmp_path: Path) -> None:
    drafted = []
    chat = model().session(max_tokens=48, draft_by="ngram", slots=256)
    for more in ({}, {"draft_by": "mtp"}):
        reply, chat = chat.generate([*chat.conversation, *model().encode(TEXT)], **more)
        drafted.append([number for number, count in enumerate(reply.stats.drafted_by_drafter) if count])
    assert drafted == [[0], [1]]
    chat.save(tmp_path / "chat")
    again = model().load_session(tmp_path / "chat")
    assert again.options == chat.options
    assert again.options.draft_by == ("ngram",)


def test_unknown_drafters_are_refused_and_the_names_listed() -> None:
    for refused in (model().generate, model().session):
        with pytest.raises(UnknownDrafterError, match=UNKNOWN):
            refused(*[TEXT][: refused == model().generate], draft_by=["mtp", "eagle"])
    with pytest.raises(specjax.SpecjaxError, match="'mtp', but the model has no drafter; leave it out"):
        specjax.load(FIXTURES / "dense/qwen3/hf").generate([1, 2], max_tokens=2, draft_by="mtp")


def test_a_line_of_prompts_that_names_an_unknown_drafter_is_refused_by_its_place() -> None:
    lines = b'{"prompt": "a", "draft_by": ["mtp", "ngram"]}\n{"prompt": "a", "draft_by": "eagle"}\n'
    prompts = parse_prompts(lines, "p.jsonl")
    with pytest.raises(PromptError, match=f"p.jsonl:2: {UNKNOWN}"):
        Evaluation(model(), prompts, specjax.GenerateOptions(max_tokens=2), rows=2)
    good, bad = sift(model(), prompts, specjax.GenerateOptions(draft_by="ngram"))
    assert ([line.index for line in good], [line.index for line in bad]) == ([0], [1])
    with pytest.raises(PromptError, match=r"p\.jsonl:1: draft_by is 7; give the name of a drafter"):
        parse_prompts(b'{"prompt": "a", "draft_by": 7}', "p.jsonl")
