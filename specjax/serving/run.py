"""The server as a process: it listens until it is told to end, and then lets what runs come to its end."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Sequence
from typing import Any

import uvicorn

from specjax.serving.app import Access, make_app
from specjax.serving.service import Service

IDLE_SECONDS = 75
"""How long a connection without a request stays open. It must be longer than clients keep theirs (5 s by httpx, which
OpenAI's client uses): where the server is the first to close, the next request may be on its way already, and fails."""


LAST_SECONDS = 5
"""After the time that running requests have at the end: time to tell clients that theirs has been broken off."""


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
    """A server that ends as well when its engine has failed for good. Requests that run too long then are told so."""

    def __init__(self, service: Service, access: Access) -> None:
        """
        Args:
            service: does the work.
            access: who may ask.
        """
        self._worker, self._drain = service.worker, service.settings.limits.drain_seconds
        super().__init__(server_config(service, access, timeout_graceful_shutdown=self._drain + LAST_SECONDS))

    async def on_tick(self, counter: int) -> bool:
        """Whether to end; uvicorn asks every tenth of a second."""
        return await super().on_tick(counter) or self._worker.failed

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take nothing new, and end when what runs has ended."""
        told = asyncio.get_running_loop().call_later(self._drain, self._worker.stop)
        await super().shutdown(sockets)
        told.cancel()


def run_server(service: Service, access: Access, sockets: Sequence[socket.socket]) -> bool:
    """Serve until SIGTERM or Ctrl-C. Then nothing new is taken, and requests that run may end; a second one ends all.

    Returns:
        Whether all was well. If not, the engine has failed, and no other one could be made.
    """
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal that it got once more at its end; to have drained is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
    Server(service, access).run(sockets=list(sockets))
    return not service.worker.failed
