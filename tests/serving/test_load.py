"""Many clients at once: texts stay what they are alone, seats come back, queues are fair and bounded."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jax
import pytest
from running import DRAFTS, SEATS, Running

from specjax.serving.fair_queue import FairQueue, QueueFull


def depth(index: int) -> dict[str, Any]:
    """All depths in turn."""
    return {"draft": index % (DRAFTS + 1)}


def test_texts_do_not_depend_on_other_clients(running: Running, client: httpx.Client) -> None:
    bodies: list[dict[str, Any]] = [
        {
            "prompt": prompt,
            "max_tokens": 12 + 7 * index,
            "temperature": temperature,
            "seed": index,
            "draft": index % (DRAFTS + 1),
        }
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


def test_requests_compile_nothing(running: Running, client: httpx.Client) -> None:
    """All programs have been built before the server listens; whatever requests want is data."""
    compiled: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
    bodies: list[dict[str, Any]] = [{}, {"draft": 0}, {"draft": "auto"}, {"logprobs": 3}, {"ignore_eos": True}]
    for index, accept in enumerate(("rejection", "block", "coupled")):
        settings = {"temperature": 0.3 * index, "top_p": 0.9, "top_k": 7 * index, "min_p": 0.01 * index, "seed": index}
        others = {"accept": accept, "p_min": 0.1 * index, "draft": index, "logprobs": 3 * index, "stop": ["q", "zz"]}
        bodies.append({**settings, **others, "draft_by": ["mtp", "ngram", ["ngram", "mtp"]][index]})
    long = "def f(x):\n    return x + 1\n\n"
    with ThreadPoolExecutor(len(bodies)) as pool:
        for prompt in ("import os\n", long * 4, long * 12, [long * 2, "a", "b", "c", "d"]):
            asked = [{"prompt": prompt, "max_tokens": 8, **body} for body in bodies]
            answers = [*pool.map(lambda body: client.post("/v1/completions", json=body), asked)]
            assert {answer.status_code for answer in answers} == {200}
    assert not compiled


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


def test_a_full_queue_refuses_and_says_so(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.settle()
    engine, going = running.service.worker.engine, threading.Event()
    step = engine.step
    monkeypatch.setattr(engine, "step", lambda **given: going.wait() and step(**given))  # no text comes to its end
    monkeypatch.setattr(running.service.worker.queue, "most", 10)
    many = {"prompt": ["a"] * (10 + SEATS), "max_tokens": 2}
    busy = threading.Thread(target=lambda: client.post("/v1/completions", json=many))
    busy.start()
    try:
        while engine.load < SEATS:
            time.sleep(0.01)
        for stream in (False, True):
            answer = client.post("/v1/completions", json={"prompt": ["b"] * 11, "max_tokens": 1, "stream": stream})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert answer.headers["retry-after"] == "1"
    finally:
        going.set()
        busy.join()
    running.settle()
    assert client.post("/v1/completions", json={"prompt": ["b"] * 10, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("most", [0, 10])
def test_free_seats_take_texts_that_the_queue_has_no_room_for(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    running.settle()
    monkeypatch.setattr(running.service.worker.queue, "most", most)
    assert client.post("/v1/completions", json={"prompt": ["b"] * (most + SEATS), "max_tokens": 1}).status_code == 200
    never = client.post("/v1/completions", json={"prompt": ["b"] * (most + SEATS + 1), "max_tokens": 1})
    assert (never.status_code, "retry-after" in never.headers) == (400, False)
    assert f"at most {most + SEATS} of one request" in never.json()["error"]["message"]


def test_what_comes_while_rounds_run_is_in_the_next_step(
    running: Running, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.settle()
    worker, over, loads = running.service.worker, threading.Event(), list[int]()
    engine = worker.engine
    step = engine.step

    def noted(**given: Any) -> Any:
        loads.append(engine.load)
        return step(**given)

    monkeypatch.setattr(type(engine), "seconds_left", property(lambda self: 0.0 if over.is_set() else 60.0 * self.load))
    monkeypatch.setattr(engine, "step", noted)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.post, "/v1/completions", json={"prompt": "a", **ENDLESS, "max_tokens": 20})
        while not loads and not first.done():
            time.sleep(0.01)
        second = pool.submit(client.post, "/v1/completions", json={"prompt": "b", "max_tokens": 1})
        end = time.monotonic() + 10
        while not len(worker.queue) and time.monotonic() < end:
            time.sleep(0.01)
        over.set()
        assert {first.result().status_code, second.result().status_code} == {200}
    assert loads[:2] == [1, 2], "rounds were started while others ran"


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
    tokens = running.model.encode("def first(a, b):\n    return a + b\n\n\ndef second(a, b):\n    return a - b\n" * 2)
    longer = [*tokens, *running.model.encode("\nimport os\n")]
    fresh = running.model.generate(longer, max_tokens=8, draft=DRAFTS).text
    client.post("/v1/completions", json={"prompt": tokens, "max_tokens": 1, "temperature": 0})
    answer = client.post("/v1/completions", json={"prompt": longer, "max_tokens": 8, "temperature": 0}).json()
    assert answer["choices"][0]["text"] == fresh
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(tokens) >= 32
    page = client.get("/metrics").text
    assert "specjax_prefix_hits" in page
    assert 'specjax_accepted_tokens_total{position="1"}' in page


def test_an_engine_that_fails_is_replaced(running: Running, client: httpx.Client) -> None:
    running.settle()
    worker, broken = running.service.worker, threading.Event()
    step = worker.engine.step

    def fails(**given: Any) -> Any:
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
