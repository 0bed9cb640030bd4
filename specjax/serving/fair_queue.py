"""A queue that is fair to clients: those that wait take turns, however much each of them asks for."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueFull(Exception):
    """The queue has no room for what was to be added."""


class FairQueue(Generic[Item]):
    """Items of several clients. Threads may share it.

    Attributes:
        most: items that may wait.
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: see the attribute.
        """
        self.most = most
        self._lock = threading.Lock()
        self._clients: OrderedDict[str, deque[Item]] = OrderedDict()  # the next one first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, client: str, items: Sequence[Item], idle: int = 0) -> None:
        """Add all of the items or none.

        Args:
            client: whose items they are.
            items: what is added.
            idle: items that will be taken at once, and do not count as waiting.

        Raises:
            QueueFull: there is no room for all of them.
        """
        with self._lock:
            if self._count + len(items) > self.most + idle:
                raise QueueFull(f"{self._count} texts wait, and at most {self.most} may")
            self._clients.setdefault(client, deque()).extend(items)
            self._count += len(items)

    def take(self) -> Item | None:
        """The oldest item of the client whose turn it is; None if nothing waits."""
        with self._lock:
            if not self._clients:
                return None
            client, items = next(iter(self._clients.items()))
            item = items.popleft()
            self._count -= 1
            if items:
                self._clients.move_to_end(client)
            else:
                del self._clients[client]
            return item

    def remove(self, item: Item) -> bool:
        """Take an item out of its turn; whether it was there."""
        with self._lock:
            for client, items in self._clients.items():
                if item in items:
                    items.remove(item)
                    self._count -= 1
                    if not items:
                        del self._clients[client]
                    return True
            return False
