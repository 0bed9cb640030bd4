"""How many slots KV caches get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specjax.models.protocol import Target

if TYPE_CHECKING:
    from specjax.runtime.request import Request

SLOT_STEP = 256
"""Slots of KV caches grow in steps of so many, so that prompts of similar length share compiled programs."""


def slots_for(length: int) -> int:
    """Slots of KV caches for sequences of at most `length` tokens."""
    return -(-length // SLOT_STEP) * SLOT_STEP


def slots_of(requests: Sequence[Request], target: Target) -> int:
    """Slots in which each of these requests fits, as far as the model's context reaches."""
    longest = max(len(request.prompt) + request.max_tokens for request in requests)
    return slots_for(min(longest, target.context_length))


def kept_sizes(slots: int) -> list[int]:
    """Slots that copies of texts can have: few numbers, because each is a program of its own."""
    sizes = [SLOT_STEP]
    while sizes[-1] < slots:
        sizes.append(2 * sizes[-1])
    return [*sizes[:-1], slots]


def kept_slots(length: int, slots: int) -> int:
    """Slots of a copy that holds so many tokens, where the running state has `slots`."""
    return next(size for size in kept_sizes(slots) if size >= length)
