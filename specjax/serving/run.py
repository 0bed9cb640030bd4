"""The server as a process: it listens until it is told to end, and then lets what runs come to its end."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Sequence
from typing import Any

import uvicorn

from specjax.serving.app import Access, make_app
from specjax.serving.service import Service
from specjax.serving.worker import Worker

IDLE_SECONDS = 75
"""How long a connection without a request stays open. It must be longer than clients keep theirs (5 s by httpx, which
OpenAI's client uses): where the server is the first to close, the next request may be on its way already, and fails."""


def server_config(service: Service, access: Access, **more: Any) -> uvicorn.Config:
    """What uvicorn needs to know; `more` are further arguments of `uvicorn.Config`, which have precedence."""
    settings: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "lifespan": "on",
        "timeout_keep_alive": IDLE_SECONDS,
        "server_header": False,
    }
    return uvicorn.Config(make_app(service, access), **{**settings, **more})


class Server(uvicorn.Server):
    """A server that ends as well when its engine has failed for good."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        """
        Args:
            config: of uvicorn.
            worker: drives the engine.
        """
        super().__init__(config)
        self._worker = worker

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; uvicorn asks every tenth of a second."""
        return await super().on_tick(counter) or self._worker.failed


def run_server(service: Service, access: Access, sockets: Sequence[socket.socket]) -> bool:
    """Serve until SIGTERM or Ctrl-C. Then nothing new is taken, and requests that run may end; a second one ends all.

    Returns:
        Whether all was well. If not, the engine has failed, and no other one could be made.
    """
    drain = max(1, round(service.settings.limits.drain_seconds))
    config = server_config(service, access, timeout_graceful_shutdown=drain)
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal that it got once more at its end; to have drained is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
    Server(config, service.worker).run(sockets=list(sockets))
    return not service.worker.failed
