"""On accelerators the program of rounds is compiled while that for prompts is built, and is not compiled again."""

import logging
import threading

import jax
import pytest

import specjax
from specjax.decoding.settings import DraftConfig
from specjax.runtime import rounds
from specjax.runtime.building import Building
from specjax.runtime.depth.control import START, DepthControl

PROMPT = "def add(a, b):\n    return a + b\n" * 6


@pytest.mark.parametrize("draft", [3, "auto", 0])
def test_rounds_are_compiled_once_and_ahead(
    model: specjax.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, draft: int | str
) -> None:
    # Chunks of a length for which no other test has programs.
    options = specjax.GenerateOptions(max_tokens=12, draft=draft, rounds_per_chunk=99)
    monkeypatch.setattr(rounds, "current_platform", lambda: "gpu")
    started: list[str] = []
    compiled = Building.ahead

    def ahead(self: Building, compile: object, *key: object) -> None:
        compiled(self, compile, *key)
        started.extend(thread.name for thread in self._ahead.values())

    monkeypatch.setattr(Building, "ahead", ahead)
    jax.config.update("jax_log_compiles", True)
    try:
        with caplog.at_level(logging.WARNING):
            got = model.generate(PROMPT, options)
    finally:
        jax.config.update("jax_log_compiles", False)
    assert len(started) == 1
    assert sum("Finished XLA compilation of jit(decode_chunk)" in record.message for record in caplog.records) == 1
    assert not any(thread.name in started for thread in threading.enumerate())
    monkeypatch.undo()
    assert got.tokens == model.generate(PROMPT, options).tokens


def test_what_fails_ahead_is_told_by_the_call() -> None:
    building, called = Building(set()), []
    building.ahead(lambda: 1 / 0, "rounds")
    building.ahead(lambda: called.append("twice"), "rounds")
    with building.at_first("rounds", (), "rounds"):
        called.append("call")
    assert called == ["call"]
    building.ahead(lambda: called.append("again"), "rounds")
    assert called == ["call"], "it has been built"


def test_the_first_depth_is_foreseen() -> None:
    control = DepthControl(8, 2)
    auto, fixed = DraftConfig(n_max=8, auto=True), DraftConfig(n_max=5)
    for wants in ({0: auto}, {0: fixed}, {0: auto, 1: fixed}):
        expected = control.foreseen(wants)
        assert DepthControl(8, 2).choose(wants, (), may_build=True, alone=True).depth == expected
    assert control.foreseen({0: auto}) == START
