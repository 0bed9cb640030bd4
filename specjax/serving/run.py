"""The server as a process: it listens until it is told to end, and then lets what runs come to its end."""

from __future__ import annotations

import signal
import threading

import uvicorn

from specjax.serving.app import Access, make_app
from specjax.serving.service import Service


def run_server(service: Service, access: Access, host: str, port: int) -> None:
    """Serve until SIGTERM or Ctrl-C. Then nothing new is taken, and requests that run may end; a second one ends all.

    Raises:
        OSError: the address cannot be had.
    """
    seconds = service.settings.limits.drain_seconds
    config = uvicorn.Config(
        make_app(service, access),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=max(1, round(seconds)),
        server_header=False,
    )
    if threading.current_thread() is threading.main_thread():
        # uvicorn raises the signal that it got once more at its end; to have drained is no failure.
        signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run()
