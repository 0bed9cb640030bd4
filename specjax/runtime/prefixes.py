"""Prompts that start alike are computed once: texts that have been fed, kept under a budget of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from specjax.decoding.decoder import LONGEST_CHUNK
from specjax.runtime.memory import Memory, common_prefix

LEAST_SHARED = 32
"""How many equal tokens at the start of two prompts are worth a copy of the state."""

DEFAULT_PREFIX_BYTES = 256 * 2**20


class PrefixCache:
    """The memories of an engine's texts that were used last.

    A memory is taken when a prompt has been fed and nothing has been drafted after it, or when a text has ended. Its
    state holds committed tokens and nothing else. So a prompt that goes on from it says what it says from the start.

    Attributes:
        num_bytes: the budget; 0 keeps nothing.
        hits, tokens: prompts that went on from a memory, and tokens that were not fed because of it.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.hits = 0
        self.tokens = 0
        self._memories: list[Memory] = []  # the last used one last

    @property
    def used_bytes(self) -> int:
        """Bytes that all memories take together."""
        return sum(memory.num_bytes for memory in self._memories)

    def find(self, prompt: Sequence[int], own: Memory | None = None) -> Memory | None:
        """The memory that holds most of a prompt. The state is a copy.

        It holds all of the prompt only if its last point has the logits after it.

        Args:
            prompt: token ids.
            own: another memory that is looked at, first of all.
        """
        best = self._best(prompt)
        reach = None if own is None else own.reach(prompt, whole=True)
        if own and reach and (best is None or best[1] <= reach):
            return self._taken(own, prompt)
        if best is None:
            return None
        memory, length = best
        self._memories.remove(memory)
        self._memories.append(memory)
        self.hits += 1
        self.tokens += length
        return self._taken(memory, prompt)

    def _taken(self, memory: Memory, prompt: Sequence[int]) -> Memory:
        point = memory.point_for(prompt, whole=True)
        assert point is not None, "only what reaches into the prompt is taken"
        return memory.back_at(point)

    def _best(self, prompt: Sequence[int]) -> tuple[Memory, int] | None:
        """The memory that reaches furthest into a prompt, and how far."""
        reaches = ((memory, memory.reach(prompt, whole=True)) for memory in self._memories)
        fit = [(memory, reach) for memory, reach in reaches if reach is not None and reach >= LEAST_SHARED]
        return max(fit, key=lambda found: found[1], default=None)

    def expects(self, prompt: Sequence[int], feeding: Iterable[Sequence[int]]) -> bool:
        """Whether one of the prompts that are being fed will be a better start for this one than what is kept."""
        shared = max((shared_length(other, prompt) for other in feeding), default=0) if self.num_bytes else 0
        if shared < LEAST_SHARED:
            return False
        best = self._best(prompt)
        return best is None or best[1] < shared

    def stops(
        self, prompt: Sequence[int], others: Iterable[Sequence[int]], longest_piece: int = LONGEST_CHUNK
    ) -> tuple[int, ...]:
        """Lengths at which to pause while a prompt is fed, because others may go on from there.

        These are the lengths where prompts that wait part from this one, and the ends of blocks, for prompts to come:
        small ones as far as the longest piece reaches, since most of what prompts share is short, then such pieces.
        """
        if not self.num_bytes:
            return ()
        branches = {shared_length(prompt, other) for other in others}
        first = range(LONGEST_CHUNK, min(len(prompt), longest_piece), LONGEST_CHUNK)
        blocks = (*first, *range(longest_piece, len(prompt), longest_piece))
        return tuple(sorted(length for length in branches.union(blocks) if LEAST_SHARED <= length < len(prompt)))

    def keep(self, memory: Memory) -> None:
        """Keep a memory. It takes the place of those whose texts it goes on from, and the oldest make room for it."""
        if not self.num_bytes:
            return
        self._memories = [old for old in self._memories if memory.tokens[: len(old.tokens)] != old.tokens]
        self._memories.append(memory)
        while self.used_bytes > self.num_bytes:
            self._memories.pop(0)


def shared_length(prompt: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that the second prompt can take over from the first one. Its last one has to be fed unless both are
    equal: logits are kept of the ends of prompts.
    """
    shared = common_prefix(prompt, other)
    return shared if shared == len(prompt) else min(shared, len(other) - 1)


def worth_sharing(prompts: Iterable[Sequence[int]]) -> bool:
    """Whether two of the prompts start alike."""
    ordered = sorted(map(tuple, prompts))
    return any(shared_length(a, b) >= LEAST_SHARED for a, b in pairwise(ordered))
