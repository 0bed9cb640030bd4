"""Which calls a program makes, found out while it is traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from pallas_kernels.table import Dims

Call = tuple[str, Dims]
"""The name of an operation, and what implementations are chosen by."""

_recorder = jax.make_user_context(default_value=None)


class Calls:
    """Calls that name no implementation: what `dispatch.choose` was asked for.

    Attributes:
        made: each call once.
    """

    def __init__(self) -> None:
        self.made: list[Call] = []

    def add(self, operation: str, dims: Dims) -> None:
        """Take in a call, if there was none like it."""
        if (operation, dims) not in self.made:
            self.made.append((operation, dims))


@contextmanager
def recording() -> Iterator[Calls]:
    """Record the calls of what is traced inside. What was traced before is traced anew."""
    calls = Calls()
    with _recorder(calls):
        yield calls


def note(operation: str, dims: Dims) -> None:
    """Tell whoever records that a call is made."""
    if (calls := _recorder.value) is not None:
        calls.add(operation, dims)
