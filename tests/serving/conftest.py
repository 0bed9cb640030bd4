"""One server for all tests of this folder, of a small model with the vocabulary of the bundled one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from running import Running, serving_all
from small_model import CONFIG, agreeing_params

import checkpoints
import specjax


@pytest.fixture(autouse=True, scope="module")
def _release_programs() -> None:
    """The server keeps its programs: a test says that it compiles nothing."""


def small_model(path: Path) -> specjax.Model:
    """Few tokens are likely, so that texts come back to what they have said, and its n-grams are found again."""
    tokenizer = specjax.load(need_tokenizer=True).tokenizer
    assert tokenizer is not None
    config = replace(CONFIG, vocab_size=tokenizer.vocab_size, context_length=1024)
    params = agreeing_params(config)
    likely = np.isin(np.arange(config.vocab_size), tokenizer.encode("def add(a, b):\n    return a + b\n"))
    params["target"]["lm_head"]["weight"] *= np.where(likely, np.float32(5), np.float32(0.1))[:, None]
    checkpoints.write_gguf(path, specjax.FAMILIES, config, params, tokenizer)
    return specjax.load(path, drafter=["ngram", "mtp"], need_tokenizer=True)


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = small_model(tmp_path_factory.mktemp("model") / "small.gguf")
    with serving_all(model, tmp_path_factory.mktemp("sessions")) as running:
        yield running


@pytest.fixture
def client(running: Running) -> Iterator[httpx.Client]:
    with running.client() as client:
        yield client


@pytest.fixture
def saved(running: Running) -> Path:
    """The folder of the server's sessions."""
    assert running.service.settings.sessions is not None
    return running.service.settings.sessions
