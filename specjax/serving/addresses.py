"""Addresses are taken before anything else, so that one that cannot be had is known at once."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
"""What a machine says that has only one of the two kinds of addresses that a name such as localhost stands for."""


@contextmanager
def bound(host: str, port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address of a host, on which nobody listens yet. They are closed at the end.

    Raises:
        OSError: an address cannot be had.
    """
    sockets, missing = list[socket.socket](), None
    with ExitStack() as stack:
        try:
            for found in socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
                try:
                    sockets.append(_bound(stack, found))
                except OSError as error:
                    if error.errno not in NOT_HERE:
                        raise
                    missing = error
            if missing is not None and not sockets:
                raise missing
        except OSError as error:
            message = f"cannot listen there: {error.strerror}; choose another --host or --port"
            raise OSError(error.errno, message, f"{host}:{port}") from None
        yield sockets


def _bound(stack: ExitStack, found: tuple) -> socket.socket:
    family, kind, protocol, _, address = found
    made = stack.enter_context(socket.socket(family, kind, protocol))
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the connections of an ended server do not matter
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind(address)
    return made


def url_of(listening: socket.socket) -> str:
    """The address of a socket as browsers and clients want it."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
