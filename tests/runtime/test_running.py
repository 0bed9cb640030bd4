"""The time of a chunk that runs beside the host."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp

from specjax.runtime.running import Running


class Chunk:
    """A result that is there from second `end` on. Its clock goes on when somebody waits."""

    def __init__(self, end: float) -> None:
        self.end, self.now = end, 0.0

    def clock(self) -> float:
        return self.now

    def is_ready(self) -> bool:
        return self.now >= self.end

    def block_until_ready(self) -> None:
        self.now = max(self.now, self.end)


def started(end: float, now: float, expected: float = 0.0) -> tuple[Any, Running]:
    chunk: Any = Chunk(end)
    chunk.now = now
    return chunk, Running(chunk, chunk.clock, now, expected)


def test_a_chunk_that_is_awaited_has_an_exact_time() -> None:
    chunk, running = started(end=13.0, now=10.0)
    chunk.now = 11.5
    assert running.seconds(free=9.0) == 3.0, "the device was free when it was started"
    assert running.seconds(free=12.0) == 1.0, "it had to wait for the chunk before it"
    assert running.doubt == 0.0


def test_the_host_sees_an_end_later_than_it_was() -> None:
    chunk, running = started(end=13.0, now=10.0)
    chunk.now = 12.0
    assert running.goes_on()
    chunk.now = 14.0
    assert not running.goes_on()
    chunk.now = 50.0
    assert running.wait() == 14.0
    assert running.doubt == 2.0


def test_what_is_left_is_what_was_expected_less_what_has_passed() -> None:
    chunk, running = started(end=13.0, now=10.0, expected=2.5)
    chunk.now = 11.0
    assert running.left(free=9.0) == 1.5
    assert running.left(free=10.5) == 2.0
    chunk.now = 12.9
    assert running.left(free=9.0) == 0.0, "it takes longer than was expected"
    chunk.now = 13.0
    assert running.left(free=12.0) == 0.0, "it has ended"


def test_arrays_of_jax_say_whether_they_are_there() -> None:
    begin = time.perf_counter()
    running = Running(jax.jit(lambda x: x @ x)(jnp.ones((64, 64))), time.perf_counter, begin, 60.0)
    assert running.seconds(free=0.0) > 0.0
    assert not running.goes_on()
    assert running.left(free=0.0) == 0.0
