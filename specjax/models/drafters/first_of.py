"""Several drafters for one target: each row of a round is served by the first of them that has drafts for it.

Which one serves a row depends on its settings and on the committed text, never on what was drawn: so all acceptance
rules stay exact. The states of all drafters are kept up in every round. One that serves no row is only fed: it drafts
nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import (
    ChooseDraft,
    Drafter,
    FeatureRequest,
    Features,
    KeepGoing,
    Params,
    Proposal,
    Target,
)
from specjax.state import Content, KVTypes, Part, SequenceState, Shift, Window


@struct.dataclass
class FirstOfState(Part):
    """What the drafters carry, in their order; None for one that carries nothing."""

    parts: tuple[Any, ...]

    @property
    def cannot_shift(self) -> str | None:
        """What stands in the way of the first drafter that cannot drop tokens."""
        return next((part.cannot_shift for part in self._inner() if part.cannot_shift), None)

    def shift(self, shift: Shift) -> FirstOfState:
        """Drop the tokens from what each of them carries."""
        return FirstOfState(tuple(None if part is None else part.shift(shift) for part in self.parts))

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """What each of them carries, named by its number, from 0."""
        return tuple(
            content.under(f"drafter {index}")
            for index, part in enumerate(self.parts)
            if part is not None
            for content in part.contents(row, length)
        )


@struct.dataclass
class FirstOfWindow:
    """The windows of the drafters, in their order."""

    windows: tuple[Window | None, ...]

    def commit(self, n: Int[Array, "B"]) -> FirstOfState:
        """Keep the first n tokens in what each of them carries."""
        return FirstOfState(tuple(None if window is None else window.commit(n) for window in self.windows))


@dataclass(frozen=True)
class FirstOf(BaseDrafter):
    """See `specjax.models.protocol.Drafter`.

    A drafter has something for a row if it may draft for it (`RowSettings.drafters`), makes at least one draft, and is
    sure enough of the first one: `p_min` says how sure. The last drafter serves all rows that are left and that it may
    draft for. A list within the list counts as one drafter.

    Attributes:
        drafters: in the order in which they are asked.
    """

    drafters: tuple[Drafter, ...]

    def __post_init__(self) -> None:
        if not self.drafters:
            raise ValueError("FirstOf has no drafters; name at least one drafter")

    def attach(self, target: Target) -> FirstOf:
        """Attach each of them to the target."""
        return FirstOf(tuple(drafter.attach(target) for drafter in self.drafters))

    def parameters(self, target: Target) -> Params:
        """Those of all of them.

        Raises:
            ValueError: parameters of two drafters have the same name.
        """
        return united([drafter.parameters(target) for drafter in self.drafters])

    def shard(self, parts: int) -> FirstOf:
        """Each of them for one part of the model."""
        return FirstOf(tuple(drafter.shard(parts) for drafter in self.drafters))

    def head_paths(self) -> tuple[str, ...]:
        """Those of all of them, each once."""
        return tuple(dict.fromkeys(path for drafter in self.drafters for path in drafter.head_paths()))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Those of all of them."""
        return tuple(name for drafter in self.drafters for name in drafter.class_names)

    @property
    def keeper(self) -> FirstOf:
        """The drafters that their states belong to."""
        return FirstOf(tuple(drafter.keeper for drafter in self.drafters))

    @property
    def request(self) -> FeatureRequest:
        """What any of them reads of the target."""
        each = [drafter.request for drafter in self.drafters]
        return FeatureRequest(
            final_hidden=any(request.final_hidden for request in each),
            layer_inputs=tuple(sorted({index for request in each for index in request.layer_inputs})),
        )

    @property
    def max_drafts(self) -> int | None:
        """As many as one of them can make."""
        limits = [drafter.max_drafts for drafter in self.drafters]
        return None if None in limits else max(limit for limit in limits if limit is not None)

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> FirstOfState:
        """The states of all of them before the first token."""
        return FirstOfState(
            tuple(
                drafter.init_state(batch, capacity, rows=rows, chunk=chunk, kv_types=kv_types)
                for drafter in self.drafters
            )
        )

    def _features(self, drafter: Drafter, features: Features) -> Features:
        """What one of them asked for."""
        asked, given = drafter.request, self.request.layer_inputs
        return Features(
            features.final_hidden if asked.final_hidden else None,
            tuple(features.layer_inputs[given.index(layer)] for layer in asked.layer_inputs),
        )

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: FirstOfState,
        length: Int[Array, "B"],
    ) -> FirstOfState:
        """Give the tokens to each of them."""
        return FirstOfState(
            tuple(
                drafter.extend(params, tokens, self._features(drafter, features), n_valid, part, length)
                for drafter, part in zip(self.drafters, state.parts, strict=True)
            )
        )

    def narrowed(self, params: Params, state: FirstOfState, length: Int[Array, "B"], rows: int) -> FirstOfState:
        """Narrow what waits in each of them."""
        return FirstOfState(
            tuple(
                drafter.narrowed(params, part, length, rows)
                for drafter, part in zip(self.drafters, state.parts, strict=True)
            )
        )

    def propose(
        self,
        params: Params,
        pending: Int[Array, "B"],
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        """Ask one after the other; later ones draft for the rows that are left, and for no others."""
        left = jnp.ones(pending.shape, bool)
        proposals: list[Proposal] = []
        for number, (drafter, part) in enumerate(zip(self.drafters, state.drafter.parts, strict=True)):

            def go_on(
                confidence: Array, made: Array | int, drafter: int = 0, *, left: Array = left, own: int = number
            ) -> Array:
                del drafter  # its number in a list within the list
                return left & keep_going(confidence, made, own)

            count = min(num_drafts, num_drafts if drafter.max_drafts is None else drafter.max_drafts)
            if count < num_drafts:  # more rows may wait in it than rounds of its own would leave
                part = drafter.narrowed(params, part, state.length, count + 1)
            proposal = drafter.propose(
                params, pending, replace(state, drafter=part), num_drafts=count, choose=choose, keep_going=go_on
            )
            made = jnp.full(pending.shape, count) if proposal.made is None else proposal.made
            made = jnp.where(go_on(proposal.confidence[:, 0], 0), made, 0)
            source = jnp.full_like(pending, number)
            proposals.append(_with_columns(proposal._replace(made=made, source=source), num_drafts))
            left &= made == 0
        states = FirstOfState(tuple(proposal.state for proposal in proposals))
        if any(proposal.logq is not None for proposal in proposals):
            size = next(proposal.logq.shape[-1] for proposal in proposals if proposal.logq is not None)
            proposals = [_with_logq(proposal, size) for proposal in proposals]
        return reduce(_or_else, proposals)._replace(state=states)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: FirstOfState) -> FirstOfWindow:
        """Join a verified window to what each of them carries."""
        return FirstOfWindow(
            tuple(
                drafter.observe(tokens, self._features(drafter, features), part)
                for drafter, part in zip(self.drafters, state.parts, strict=True)
            )
        )

    def hidden_norm(self, state: FirstOfState) -> Float[Array, "B"] | None:
        """That of the first drafter that starts from a hidden state."""
        norms = (drafter.hidden_norm(part) for drafter, part in zip(self.drafters, state.parts, strict=True))
        return next((norm for norm in norms if norm is not None), None)


def united(branches: list[Params]) -> Params:
    """The parameters of several drafters in one tree.

    Raises:
        ValueError: two of them have the same name.
    """
    count = Counter(name for branch in branches for name in branch)
    if twice := sorted(name for name, number in count.items() if number > 1):
        raise ValueError(f"two drafters of the list have parameters called {', '.join(twice)}; only one of them can")
    return {name: value for branch in branches for name, value in branch.items()}


def _with_columns(proposal: Proposal, num_drafts: int) -> Proposal:
    """The proposal with columns of drafts that are not made behind its own."""

    def padded(columns: Array) -> Array:
        return jnp.pad(columns, ((0, 0), (0, num_drafts - columns.shape[1]), *((0, 0),) * (columns.ndim - 2)))

    logq = None if proposal.logq is None else padded(proposal.logq)
    return proposal._replace(tokens=padded(proposal.tokens), logq=logq, confidence=padded(proposal.confidence))


def _with_logq(proposal: Proposal, vocab_size: int) -> Proposal:
    """The proposal with probabilities: drafts that were not drawn are certain."""
    if proposal.logq is not None:
        return proposal
    certain = proposal.tokens[..., None] == jnp.arange(vocab_size)
    return proposal._replace(logq=jnp.where(certain, 0.0, -jnp.inf).astype(jnp.float32))


def _or_else(first: Proposal, other: Proposal) -> Proposal:
    """The first proposal in the rows for which it has drafts, else the other."""
    assert first.made is not None
    serves = first.made > 0

    def chosen(own: Array, others: Array) -> Array:
        return jnp.where(serves.reshape(-1, *(1,) * (own.ndim - 1)), own, others)

    return jax.tree.map(chosen, first._replace(state=None), other._replace(state=None))
