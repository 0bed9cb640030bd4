"""One server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from running import DRAFTS, KEY, SEATS, SLOTS, Running, serving

import specjax
from specjax.serving.app import Access
from specjax.serving.limits import Limits
from specjax.serving.service import Settings


@pytest.fixture(autouse=True, scope="module")
def _release_programs() -> None:
    """The server keeps its programs: a test says that it compiles nothing."""


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    options = specjax.GenerateOptions(draft=DRAFTS, temperature=1.0)
    limits = Limits(queue=40, tokens=300, choices=16, body_bytes=100_000, body_seconds=1, seconds=60)
    folder = tmp_path_factory.mktemp("sessions")
    settings = Settings("demo", options, seats=SEATS, slots=SLOTS, prefix_bytes=2**24, sessions=folder, limits=limits)
    access = Access(KEY, ("127.0.0.1",), ("https://page.example",))
    with serving(specjax.load(drafter=["ngram", "mtp"], need_tokenizer=True), settings, access, warm=True) as running:
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
