"""The server as a process: it drains when it is told to end, and what was saved is there after kill -9."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest
from running import Running, listen

from specjax.serving.app import Access
from specjax.serving.run import server_config

ROOT = Path(__file__).parents[2]


@contextmanager
def process(*arguments: object) -> Iterator[tuple[subprocess.Popen[bytes], httpx.Client]]:
    """`specjax serve` on a free port, and a client of it."""
    with listen() as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "specjax", "serve", "--port", port, "--no-warm", "--seats", 2, "--slots", 512]
    running = subprocess.Popen([*map(str, command), *map(str, arguments)], cwd=ROOT, env=os.environ)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            wait_until_healthy(client, running)
            yield running, client
    finally:
        running.kill()
        running.wait()


def wait_until_healthy(client: httpx.Client, running: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while running.poll() is None and time.monotonic() < end:
        try:
            assert client.get("/health").json() == {"status": "ok"}
        except httpx.TransportError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not start")


@pytest.mark.parametrize("client", [httpx.Limits(), openai.DEFAULT_CONNECTION_LIMITS], ids=["httpx", "openai"])
def test_clients_close_idle_connections_before_the_server_does(running: Running, client: httpx.Limits) -> None:
    """Where the server did, a request could come just then, and fail."""
    server = server_config(running.service, Access()).timeout_keep_alive
    assert client.keepalive_expiry is not None
    assert server >= 2 * client.keepalive_expiry


@pytest.mark.slow
def test_saved_sessions_outlive_kill_and_running_requests_end_before_the_server_does(tmp_path: Path) -> None:
    body = {"prompt": "import os\n", "max_tokens": 12, "temperature": 0, "session": "kept"}
    with process("--sessions", tmp_path) as (running, client):
        client.post("/sessions", json={"id": "kept"})
        first = client.post("/v1/completions", json=body).json()
        assert client.post("/sessions/kept/save").status_code == 200
        client.post("/v1/completions", json={**body, "prompt": "\nnot saved\n"})
        running.send_signal(signal.SIGKILL)
        running.wait()
    with process("--sessions", tmp_path) as (running, client):
        told = client.get("/sessions/kept").json()
        assert told["text"] == "import os\n" + first["choices"][0]["text"]
        assert told["computed_tokens"] == told["tokens"] - 1
        endless = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}
        with client.stream("POST", "/v1/completions", json=endless) as answer:
            lines = answer.iter_lines()
            next(lines)
            running.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]
        assert running.wait(30) == 0


@pytest.mark.slow
def test_the_end_does_not_wait_for_a_grammar_that_compiles_long() -> None:
    body = {"prompt": "x", "regex": "((a|b|c|d|e)[a-z]{1,30}){20}"}
    with process("--drain-seconds", 1) as (running, client), ThreadPoolExecutor() as pool:
        asked = pool.submit(client.post, "/v1/completions", json=body)
        time.sleep(2)
        assert not asked.done()
        begun = time.monotonic()
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
        assert time.monotonic() - begun < 10
