"""What the server takes on at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that keep one client from taking all there is.

    Attributes:
        queue: texts that wait for a seat, of all clients together.
        tokens: tokens that a text may have beside its prompt.
        choices: texts of one request.
        body_bytes: bytes of a request's body.
        seconds: how long a request may take, waiting included.
        body_seconds: how long a client may take to send a body.
        grammar_seconds: how long a processor may work on one grammar, in whole seconds.
        grammar_bytes: memory for that.
        grammar_states: states of the automaton that comes of it. What the server does with it then takes seconds.
        drain_seconds: how long running requests may go on when the server is told to end.
    """

    queue: int = 256
    tokens: int = 8192
    choices: int = 128
    body_bytes: int = 4 * 2**20
    seconds: float = 600.0
    body_seconds: float = 20.0
    grammar_seconds: int = 30
    grammar_bytes: int = 4 * 2**30
    grammar_states: int = 2**16
    drain_seconds: float = 60.0
