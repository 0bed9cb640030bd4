"""Drafters that do not come in the model's file: attached by `specjax.load` and by `--drafter`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from small_model import write_small_model

import specjax
from specjax.models.drafters.ngram import NGram

PROMPT = "def add(a, b):\n"
OTHER_VOCABULARY = Path(__file__).parent / "fixtures" / "qwen3_5" / "dense" / "model.gguf"


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="module")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "headless.gguf", mtp=False)


@pytest.fixture(scope="module")
def plain(headless: Path) -> list[int]:
    return specjax.load(headless).generate(PROMPT, max_tokens=60, draft=0).tokens


def test_ngrams_draft_for_a_model_without_a_head(headless: Path, plain: list[int]) -> None:
    assert specjax.load(headless, drafter="ngram").drafter == NGram()
    drafter = NGram(longest=3, shortest=1)
    model = specjax.load(headless, drafter=drafter)
    assert model.drafter == drafter
    assert "NGram" in repr(model)
    generation = model.generate(PROMPT, max_tokens=60)
    assert generation.tokens == plain
    assert generation.stats.rounds < 59


def test_a_model_drafts_for_itself_without_a_miss(headless: Path, gguf: Path, plain: list[int]) -> None:
    generation = specjax.load(headless, drafter=gguf).generate(PROMPT, max_tokens=60)
    assert generation.tokens == plain
    assert generation.stats.accepted == generation.stats.drafted


def test_a_model_with_another_vocabulary_is_refused(headless: Path) -> None:
    with pytest.raises(specjax.SpecjaxError, match="vocabularies"):
        specjax.load(headless, drafter=OTHER_VOCABULARY)


@pytest.mark.slow
def test_the_command_line_attaches_a_drafter(headless: Path) -> None:
    command = [sys.executable, "-m", "specjax", "generate", "--model", str(headless), "--prompt", PROMPT]
    ran = subprocess.run([*command, "--drafter", "ngram", "--compare", "--json"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["compare"]["equal"]
