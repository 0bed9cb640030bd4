"""A server in a thread of the test process, and clients of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import httpx
import openai
import uvicorn

import specjax
from specjax.serving.app import Access
from specjax.serving.limits import Limits
from specjax.serving.run import server_config
from specjax.serving.service import Service, Settings

KEY = "a key"
SLOTS, SEATS, DRAFTS = 512, 4, 2


@dataclass(frozen=True)
class Running:
    """A server in a thread of this process, whose compiled programs the tests share.

    Attributes:
        service, url: what runs, and where.
        model: asked directly, it says what the server must say.
    """

    service: Service
    url: str
    model: specjax.Model

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=120)

    @cached_property
    def openai(self) -> openai.OpenAI:
        """One for all, closed with the server: sockets of clients that nobody closes are found by later tests."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=KEY, max_retries=0, timeout=120)

    def settle(self, seconds: float = 30) -> None:
        """Wait until every seat is free and nothing waits."""
        end = time.monotonic() + seconds
        while self.service.worker.engine.load or len(self.service.worker.queue):
            assert time.monotonic() < end, "a seat was lost"
            time.sleep(0.02)


def listen() -> socket.socket:
    """A socket on a free port of the loopback."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    return listening


@contextmanager
def serving(model: specjax.Model, settings: Settings, access: Access, *, warm: bool = False) -> Iterator[Running]:
    """Run a server while inside; it must end in good order."""
    service = Service(model, settings)
    for _ in service.warm() if warm else ():
        pass
    server, listening = uvicorn.Server(server_config(service, access)), listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    running = Running(service, f"http://127.0.0.1:{listening.getsockname()[1]}", model)
    yield running
    running.openai.close()
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive()
    listening.close()


@contextmanager
def serving_all(model: specjax.Model, folder: Path) -> Iterator[Running]:
    """The server that all tests of a folder share. Its sessions are kept there."""
    options = specjax.GenerateOptions(draft=DRAFTS, temperature=1.0)
    # A request may have to wait for a program that is compiled for it.
    limits = Limits(queue=40, tokens=300, choices=16, body_bytes=100_000, body_seconds=1, seconds=240)
    settings = Settings("demo", options, seats=SEATS, slots=SLOTS, prefix_bytes=2**24, sessions=folder, limits=limits)
    access = Access(KEY, ("127.0.0.1",), ("https://page.example",))
    with serving(model, settings, access, warm=True) as running:
        yield running
