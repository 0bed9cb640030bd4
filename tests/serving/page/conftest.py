"""The page in a browser, on the one server of these tests, whose model is the bundled one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from browsing import Browser, browsing, fronting
from running import Running, serving_all

import specjax


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = specjax.load(drafter=["ngram", "mtp"], need_tokenizer=True)
    with serving_all(model, tmp_path_factory.mktemp("sessions")) as running:
        yield running


@pytest.fixture(scope="session")
def url(running: Running) -> Iterator[str]:
    with fronting(running.service) as (url, _):
        yield url


@pytest.fixture
def page(chromium: Browser, url: str) -> Iterator[Browser]:
    """The page, newly opened; it must leave no complaint of the browser."""
    chromium.open(url)
    chromium.ready()
    chromium.set(temperature=0.8, max_tokens=40, new_seed=False, seed=7)
    yield chromium
    assert chromium.errors() == []
