"""Grammars of clients: whoever needs none of them never waits for one, and each is compiled once."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from subprocess import Popen
from typing import Any

import httpx
import pytest
from running import Running

from specjax.grammar.compile import Structure
from specjax.grammar.expression import GrammarError
from specjax.serving.grammars import Grammars
from specjax.serving.limits import Limits

LONG = "((a|b|c|d|e)[a-z]{1,30}){20}"
"""An expression that takes minutes to compile."""
KNOWN = {"prompt": "x = ", "regex": "[0-9]{3}", "seed": 3}


def compiles(running: Running) -> bool:
    return bool(running.service.grammars._going)


def test_nobody_waits_for_the_grammar_of_another_client_and_it_ends_with_its_own(
    running: Running, client: httpx.Client
) -> None:
    assert client.post("/v1/completions", json=KNOWN).status_code == 200
    body: Any = {"prompt": "x", "regex": LONG}
    with ThreadPoolExecutor(8) as pool, running.client() as other:
        left = [pool.submit(other.post, "/v1/completions", json=body, timeout=2) for _ in range(8)]
        while not compiles(running):
            time.sleep(0.01)
        for body in (KNOWN, {"prompt": "x", "max_tokens": 1}):
            assert client.post("/v1/completions", json=body).status_code == 200
        assert compiles(running), "the others did not wait"
        for each in left:
            with pytest.raises(httpx.ReadTimeout):
                each.result()
    end = time.monotonic() + 10
    while compiles(running):
        assert time.monotonic() < end, "it is compiled for nobody"
        time.sleep(0.01)
    assert client.post("/v1/completions", json={**KNOWN, "regex": "[0-8]{3}"}).status_code == 200


def test_the_time_of_a_request_covers_its_grammar(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = running.service.settings
    monkeypatch.setattr(running.service, "settings", replace(settings, limits=replace(settings.limits, seconds=0.5)))
    for stream in (False, True):
        answer = client.post("/v1/completions", json={"prompt": "x", "regex": LONG, "stream": stream})
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


def grammars(running: Running, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> tuple[Grammars, list[Any]]:
    """Grammars of the server's model, and a list that gets every process that is begun."""
    begun: list[Any] = []

    def noted(*arguments: Any, **more: Any) -> Any:
        begun.append(Popen(*arguments, **more))
        return begun[-1]

    monkeypatch.setattr("specjax.serving.grammars.Popen", noted)
    return Grammars(running.service.tokenizer, running.model.target.vocab_size, Limits(**limits)), begun


def test_a_grammar_that_several_ask_for_is_compiled_once(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made, begun = grammars(running, monkeypatch)
    structure = Structure("regex", "[a-c]{2}x")

    async def ask() -> list[Any]:
        first = asyncio.create_task(made.get(structure))
        gone = asyncio.create_task(made.get(structure))
        await asyncio.sleep(0.01)
        gone.cancel()
        return [*await asyncio.gather(made.get(structure), first), await made.get(structure)]

    grammar, *others = asyncio.run(ask())
    assert others == [grammar] * 2
    assert len(begun) == 1
    assert grammar.next.shape[0] == 5


@pytest.mark.parametrize(
    ("limits", "regex", "message"),
    [
        ({"grammar_seconds": 1}, LONG, "more than 1 seconds or 4096 MiB to compile"),
        ({"grammar_bytes": 2**28}, LONG, "more than 30 seconds or 256 MiB to compile"),
        ({"grammar_states": 9}, "[0-9]{12}", "18 states; this server takes at most 9"),
        ({}, "a(b", "'a\\(b' cannot be compiled"),
        ({}, "\ud800", "cannot be compiled"),
    ],
)
def test_what_takes_too_much_is_refused(
    running: Running, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int], regex: str, message: str
) -> None:
    made, begun = grammars(running, monkeypatch, **limits)
    with pytest.raises(GrammarError, match=message):
        asyncio.run(made.get(Structure("regex", regex)))
    assert begun[0].returncode != 0
