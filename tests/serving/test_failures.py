"""The engine's thread fails: those who wait hear of it, and a server that cannot go on ends with an error."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import httpx
import pytest
from running import DRAFTS, SEATS, SLOTS, Running

import specjax
from specjax.serving.addresses import bound, url_of
from specjax.serving.app import Access
from specjax.serving.errors import ApiError
from specjax.serving.limits import Limits
from specjax.serving.run import Server, run_server
from specjax.serving.service import Service, Settings
from specjax.serving.status import Status


def no_memory(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("RESOURCE_EXHAUSTED: the device has no memory left")


def of_its_own(running: Running) -> Service:
    """Another service of the same model. Tests replace the steps of its engine, so that no program is built."""
    options = specjax.GenerateOptions(draft=DRAFTS)
    return Service(running.model, Settings("own", options, seats=SEATS, slots=SLOTS, limits=Limits(drain_seconds=0.3)))


def failing(running: Running) -> Service:
    """A service whose engine fails with the first text, and cannot be replaced."""
    service = of_its_own(running)
    service.worker.engine.step = no_memory  # type: ignore[method-assign]
    service.worker._make_engine = no_memory
    return service


def test_a_server_whose_engine_cannot_be_replaced_answers_all_and_ends(
    running: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    service = failing(running)
    ended: list[bool] = []
    with bound("127.0.0.1", 0) as sockets:
        server = threading.Thread(target=lambda: ended.append(run_server(service, Access(), sockets)))
        server.start()
        sockets[0].listen()
        with httpx.Client(base_url=url_of(sockets[0]), timeout=60) as client:
            assert client.get("/health").status_code == 200
            assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 500
        server.join(30)
    assert ended == [False]
    assert "RESOURCE_EXHAUSTED" in capsys.readouterr().err


def test_texts_and_work_that_wait_hear_of_the_failure(running: Running) -> None:
    service = failing(running)
    worker = service.worker

    def endless() -> Any:
        while True:
            yield

    async def ask() -> None:
        worker.start()
        work = asyncio.create_task(worker.do(endless()))
        wish = service.wish([1, 2], specjax.GenerateOptions(max_tokens=4, draft=DRAFTS), sequence=0)
        texts = [anext(worker.ask([wish], "client")[0]) for _ in range(SEATS + 3)]
        async with asyncio.timeout(30):
            *told, last = await asyncio.gather(*texts, work, return_exceptions=True)
        assert {type(each) for each in told[:SEATS]} == {RuntimeError}
        assert [each.code for each in (told[-1], last) if isinstance(each, ApiError)] == ["engine_failed"] * 2
        for late in (lambda: worker.do(endless()), lambda: Status(service).health(None)):  # type: ignore[arg-type]
            with pytest.raises(ApiError) as refused:
                await asyncio.wait_for(late(), 30)
            assert refused.value.status == 503
        with pytest.raises(ApiError) as refused:
            worker.ask([wish], "client")
        assert refused.value.status == 503

    asyncio.run(ask())
    worker.join()


def test_a_text_that_the_engine_cannot_take_is_told_so_and_the_others_go_on(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.settle()
    engine = running.service.worker.engine
    with monkeypatch.context() as patch:
        patch.setattr(engine, "submit", no_memory)
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 500
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 200
    assert running.service.worker.engine is engine


def test_what_runs_too_long_at_the_end_is_told_so(running: Running) -> None:
    service = of_its_own(running)
    over = threading.Event()
    service.worker.engine.step = lambda **_: over.wait(30) and ()  # type: ignore[method-assign]
    chat = {"messages": [{"role": "user", "content": "a"}]}
    server = Server(service, Access())
    with bound("127.0.0.1", 0) as sockets, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(server.run, sockets=sockets)
        sockets[0].listen()
        with httpx.Client(base_url=url_of(sockets[0]), timeout=60) as client, ThreadPoolExecutor(1) as other:
            whole = other.submit(client.post, "/v1/chat/completions", json=chat)
            with client.stream("POST", "/v1/chat/completions", json={**chat, "stream": True}) as answer:
                lines = answer.iter_lines()
                next(lines)
                while service.worker.engine.load + len(service.worker.queue) < 2:
                    time.sleep(0.01)
                server.should_exit = True
                rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"code":"ending"' in rest[-2]
            assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, "ending")
        over.set()
        ended.result(30)
