"""Ctrl-C is heard whenever it comes."""

import signal
import time
from collections.abc import Iterator

import pytest

from specjax.cli.runtime import lasting_interrupts


@pytest.fixture(autouse=True)
def usual_handler() -> Iterator[None]:
    """Also where the tests were started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_meets_a_callback_of_garbage_collection_comes_again() -> None:
    def _xla_gc_callback() -> None:
        signal.raise_signal(signal.SIGINT)

    with lasting_interrupts():
        _xla_gc_callback()
        begin = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            time.sleep(10)
        assert time.perf_counter() - begin < 5  # the signal ends what the main thread waits for
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_is_raised_at_once_elsewhere() -> None:
    with lasting_interrupts(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_process_that_ignores_interrupts_goes_on_ignoring_them() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with lasting_interrupts():
        signal.raise_signal(signal.SIGINT)
