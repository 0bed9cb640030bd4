"""Many clients at once: texts stay what they are alone, seats come back, queues are fair and bounded."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from running import SEATS, Running

from specjax.serving.fair_queue import FairQueue, QueueFull


def test_texts_do_not_depend_on_other_clients(running: Running, client: httpx.Client) -> None:
    bodies: list[dict[str, Any]] = [
        {"prompt": prompt, "max_tokens": 12 + 7 * index, "temperature": temperature, "seed": index, "draft": index % 4}
        for index, prompt in enumerate(["def f(", "import ", "class A:\n" * 9, "x = [", "while True:", "return "])
        for temperature in (0.0, 0.9)
    ]

    def text(body: dict[str, Any]) -> str:
        answer = client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["text"]

    alone = [text(body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        assert [*pool.map(text, bodies)] == alone


def test_other_settings_compile_nothing(running: Running, client: httpx.Client) -> None:
    body: dict[str, Any] = {"prompt": "import os\n", "max_tokens": 20}
    first = [{}, {"draft": 0}, {"draft": 1}, {"draft": 2}, {"logprobs": 1}, {"temperature": 0}]
    for more in first:
        assert client.post("/v1/completions", json={**body, **more}).status_code == 200
    seconds, built = running.service.worker.engine.compile_seconds, len(running.service._experience.compiled)
    for index, accept in enumerate(("rejection", "block", "coupled")):
        settings = {"temperature": 0.3 * index, "top_p": 0.9, "top_k": 7 * index, "min_p": 0.01 * index, "seed": index}
        others = {"accept": accept, "p_min": 0.1 * index, "draft": index, "logprobs": 3 * index, "stop": ["q", "zz"]}
        assert client.post("/v1/completions", json={**body, **settings, **others}).status_code == 200
    assert running.service.worker.engine.compile_seconds == seconds
    assert len(running.service._experience.compiled) == built


def wait_for(what: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.01)


ENDLESS = {"max_tokens": 300, "ignore_eos": True, "temperature": 0}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_seats(running: Running, stream: bool) -> None:
    running.settle()
    figure = running.service.metrics.registry.get_sample_value
    before = figure("specjax_texts_total", {"reason": "length"}) or 0
    body = {"prompt": ["a"] * 16, **ENDLESS, "stream": stream}  # more than there are seats
    with running.client() as client:
        if stream:
            with client.stream("POST", "/v1/completions", json=body) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/completions", json=body, timeout=0.2)
    running.settle(10)
    assert (figure("specjax_texts_total", {"reason": "length"}) or 0) - before < 16, "all texts were written to the end"


def test_a_full_queue_refuses_and_says_so(running: Running) -> None:
    running.settle()
    with running.client() as busy, running.client() as client:
        body = {"prompt": ["a"] * 16, **ENDLESS, "stream": True}
        with busy.stream("POST", "/v1/completions", json=body), busy.stream("POST", "/v1/completions", json=body):
            wait_for(lambda: len(running.service.worker.queue) + SEATS + 1 >= 16)
            answers = [client.post("/v1/completions", json={"prompt": ["b"] * 16, **ENDLESS}) for _ in range(1)]
            assert answers[0].status_code == 429
            assert answers[0].json()["error"]["code"] == "queue_full"
            assert answers[0].headers["retry-after"] == "1"
    running.settle(20)


def test_waiting_clients_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(6)
    queue.put("many", ["a1", "a2", "a3", "a4"])
    queue.put("one", ["b1"])
    with pytest.raises(QueueFull):
        queue.put("late", ["c1", "c2"])
    queue.put("late", ["c1"])
    assert queue.remove("a2")
    assert not queue.remove("a2")
    assert [queue.take() for _ in range(6)] == ["a1", "b1", "c1", "a3", "a4", None]
    assert len(queue) == 0


def test_prompts_that_start_alike_are_computed_once(running: Running, client: httpx.Client) -> None:
    text = "def first(a, b):\n    return a + b\n\n\ndef second(a, b):\n    return a - b\n\n\n" * 3
    first = client.post("/v1/completions", json={"prompt": text, "max_tokens": 8, "temperature": 0}).json()
    again = client.post("/v1/completions", json={"prompt": text, "max_tokens": 8, "temperature": 0}).json()
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= 32
    page = client.get("/metrics").text
    assert "specjax_prefix_hits" in page
    assert 'specjax_accepted_tokens_total{position="1"}' in page


def test_an_engine_that_fails_is_replaced(running: Running, client: httpx.Client) -> None:
    running.settle()
    worker, broken = running.service.worker, threading.Event()
    step = worker.engine.step

    def fails() -> Any:
        broken.set()
        raise RuntimeError("the device is gone")

    worker.engine.step = fails  # type: ignore[method-assign]
    try:
        answer = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4})
    finally:
        worker.engine.step = step if not broken.is_set() else worker.engine.step  # type: ignore[method-assign]
    assert answer.status_code == 500
    assert "device" not in answer.text
    assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4}).status_code == 200
