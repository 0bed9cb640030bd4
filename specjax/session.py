"""A conversation as a value: each turn starts from what the turns before left in the caches.

A session holds the state after its last turn. The next prompt is the whole conversation so far; what it shares with
what the session has seen is not computed again. How far back a session can go depends on the model: caches of full
attention can be cut anywhere, a ring only as far as its window still stands in it, and recurrent states, like a
drafter's waiting rows, only be taken up where a copy was kept: after each prompt and at the end of each turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from specjax.batch import CAPACITY_STEP, Continuation, Emission
from specjax.errors import PromptError
from specjax.generation import GenerateOptions, Generation
from specjax.state import KVCache, SequenceState

if TYPE_CHECKING:
    from specjax.model import Model, Prompt

DEFAULT_SLOTS = 4096
DEFAULT_SNAPSHOT_BYTES = 256 * 2**20


@dataclass(frozen=True)
class Snapshot:
    """All of a state but its KV caches, which a session keeps only once.

    Attributes:
        length: tokens that the state holds.
        parts: the state with its caches emptied.
    """

    length: int
    parts: Any = field(repr=False)

    @property
    def num_bytes(self) -> int:
        """What it takes of the session's budget."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.parts))


@dataclass(frozen=True)
class Reuse:
    """What a turn did not have to compute.

    Attributes:
        shared: tokens at the start of the prompt that the session had seen.
        reused: tokens that were not fed again; less than `shared` where no state to go back to was kept.
        fed: tokens that were.
    """

    shared: int
    reused: int
    fed: int


@dataclass(frozen=True)
class Session:
    """See `specjax.Model.session`. A turn gives a new session, and the old one stays as it was: keep it to fork.

    Attributes:
        model, options: what decodes, and how.
        slots: tokens that a conversation can hold.
        snapshot_bytes: budget for states to go back to; the oldest are given up first.
        tokens: what the state holds.
        state: of one sequence; None before the first turn.
        snapshots: states to go back to, in order of length.
        reuse: what the last turn reused; None before the first.
    """

    model: Model = field(repr=False)
    options: GenerateOptions
    slots: int
    snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES
    tokens: tuple[int, ...] = field(default=(), repr=False)
    state: SequenceState | None = field(default=None, repr=False)
    snapshots: tuple[Snapshot, ...] = field(default=(), repr=False)
    reuse: Reuse | None = None

    def generate(
        self, prompt: Prompt, max_tokens: int | None = None, observe: Callable[[Emission], None] | None = None
    ) -> tuple[Generation, Session]:
        """One turn.

        Args:
            prompt: the whole conversation, as text or token ids.
            max_tokens: tokens to emit at most, if not what the options say.
            observe: called with tokens as they become known.

        Returns:
            The generation, and the session after it. Its tokens are those of a generation without a session.

        Raises:
            PromptError: the prompt is empty, has ids outside the vocabulary, or leaves no room in the session.
        """
        ids = self.model.encode(prompt)
        if len(ids) >= self.slots:
            raise PromptError(
                f"the prompt has {len(ids)} tokens, and the session has room for {self.slots}, of which a new token"
                " needs one; shorten it, or open a session with more slots"
            )
        state, reuse = self._start(ids)
        kept: list[Snapshot] = []

        def keep(state: SequenceState) -> None:
            kept.append(_snapshot(state, len(ids)))

        options = self.options if max_tokens is None else replace(self.options, max_tokens=max_tokens)
        stream = self.model.stream(ids, options)
        stream.batch.continues = Continuation(state, reuse.reused, self.slots, keep)
        for emission in stream.emissions():
            if observe is not None:
                observe(emission)
        assert stream.batch.state is not None
        final = stream.batch.state.sequences
        tokens = (*ids, *stream.result.tokens)[: int(final.length[0])]
        kept.append(_snapshot(final, len(tokens)))
        older = [snapshot for snapshot in self.snapshots if snapshot.length <= reuse.reused]
        return stream.result, replace(
            self, tokens=tokens, state=final, snapshots=self._within_budget([*older, *kept]), reuse=reuse
        )

    def _start(self, ids: list[int]) -> tuple[SequenceState, Reuse]:
        """A state that holds as much of the prompt as can be had, its last token excepted."""
        shared = _common_prefix(self.tokens, ids)
        usable = min(shared, len(ids) - 1)
        for length, parts in self._ways_back(usable):
            if self.state is not None and self._caches_reach(length):
                return _restore(self.state, parts), Reuse(shared, length, len(ids) - length)
        decoder = self.model.decoder(self.options)
        return decoder.init_state(1, self.slots), Reuse(shared, 0, len(ids))

    def _ways_back(self, usable: int) -> Iterator[tuple[int, Any]]:
        """Lengths up to `usable` that the state can be taken back to, the longest first."""
        if self.state is None:
            return
        now = _snapshot(self.state, usable).parts
        if len(jax.tree.leaves(now)) == 1:  # nothing but caches and the length
            yield usable, replace(now, length=jnp.full_like(self.state.length, usable))
        for snapshot in sorted(self.snapshots, key=lambda snapshot: -snapshot.length):
            if snapshot.length <= usable:
                yield snapshot.length, snapshot.parts

    def _caches_reach(self, length: int) -> bool:
        """Whether every ring still holds the window of the token at `length`."""
        written = len(self.tokens) + self.model.decoder(self.options).rows  # drafts that did not stand among them
        return all(
            cache.window is None or cache.capacity == self.slots or written - length < cache.capacity - cache.window
            for cache in jax.tree.leaves(self.state, is_leaf=_is_cache)
            if _is_cache(cache)
        )

    def _within_budget(self, snapshots: list[Snapshot]) -> tuple[Snapshot, ...]:
        """As many of the newest as fit."""
        kept: list[Snapshot] = []
        total = 0
        for snapshot in reversed(snapshots):
            total += snapshot.num_bytes
            if total > self.snapshot_bytes:
                break
            kept.insert(0, snapshot)
        return tuple(kept)


def open_session(
    model: Model, options: GenerateOptions, slots: int | None, snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES
) -> Session:
    """An empty session; `slots` is rounded up to a step that shares compiled programs."""
    slots = min(model.target.context_length, DEFAULT_SLOTS) if slots is None else slots
    if not 1 < slots <= model.target.context_length:
        raise ValueError(f"slots is {slots}; give 2 to {model.target.context_length}, the model's context")
    model.decoder(options)  # says what is wrong with the options
    rounded = min(-(-slots // CAPACITY_STEP) * CAPACITY_STEP, model.target.context_length)
    return Session(model, options, rounded, snapshot_bytes)


def _is_cache(node: Any) -> bool:
    return isinstance(node, KVCache)


def _snapshot(state: SequenceState, length: int) -> Snapshot:
    """Copies: what is decoded next consumes the state's own arrays."""

    def part(node: Any) -> Any:
        return replace(node, k=(), v=()) if _is_cache(node) else jnp.copy(node)

    return Snapshot(length, jax.tree.map(part, state, is_leaf=_is_cache))


def _restore(state: SequenceState, parts: Any) -> SequenceState:
    """A copy of the state's caches with the other parts of a snapshot."""

    def whole(part: Any, now: Any) -> Any:
        return jax.tree.map(jnp.copy, now) if _is_cache(part) else jnp.copy(part)

    return jax.tree.map(whole, parts, state, is_leaf=_is_cache)


def _common_prefix(a: tuple[int, ...], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
