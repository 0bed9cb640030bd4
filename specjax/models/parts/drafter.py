"""What most drafters would answer alike, and drafters that run another one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.mesh.columns import own_columns
from specjax.models.protocol import (
    Choice,
    ChooseDraft,
    Drafted,
    Drafter,
    FeatureRequest,
    Features,
    KeepGoing,
    Params,
    Proposal,
    Target,
)
from specjax.state import KVTypes, Part, SequenceState, Window


class BaseDrafter:
    """A drafter that reads tokens only, keeps no state, has no parameters and fits every target.

    Make a frozen dataclass of it with a method `propose`, see `specjax.models.protocol.Drafter`, and replace what is
    otherwise. One that keeps a state replaces `init_state`, `extend` and `observe`.
    """

    @property
    def class_names(self) -> tuple[str, ...]:
        return (type(self).__name__,)

    @property
    def keeper(self) -> Any:
        return self

    @property
    def request(self) -> FeatureRequest:
        return FeatureRequest()

    @property
    def max_drafts(self) -> int | None:
        return None

    def attach(self, target: Target) -> Self:
        """The drafter itself, because it fits every target."""
        del target
        return self

    def parameters(self, target: Target) -> Params:
        """No parameters; replace this if the drafter has some."""
        del target
        return {}

    def shard(self, parts: int) -> Any:
        """The drafter whole on every device, see `OnEveryDevice`; replace this if it can be split."""
        return self if parts == 1 else OnEveryDevice(self)  # type: ignore[arg-type]

    def head_paths(self) -> tuple[str, ...]:
        """Refused, because the drafter does not say where its output head is; replace this if it has one."""
        raise ValueError(f"{type(self).__name__} does not say where its output head is")

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Part | None:
        """None, because the drafter remembers nothing."""
        del batch, capacity, rows, chunk, kv_types
        return None

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: Any,
        length: Int[Array, "B"],
    ) -> Any:
        """The state, which does not change."""
        del params, tokens, features, n_valid, length
        return state

    def narrowed(self, params: Params, state: Any, length: Int[Array, "B"], rows: int) -> Any:
        """The state itself, in which nothing waits."""
        del params, length, rows
        return state

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: Any) -> Window | None:
        """The state, which does not change."""
        del tokens, features
        return state

    def hidden_norm(self, state: Any) -> Float[Array, "B"] | None:
        """None: there is no hidden state to trace."""
        del state
        return None


@dataclass(frozen=True)
class RunningDrafter(BaseDrafter):
    """A drafter that runs another one, and answers as that does.

    Attributes:
        drafter: whose state it keeps, and whose layers it runs.
    """

    drafter: Drafter

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.drafter.class_names

    @property
    def keeper(self) -> Drafter:
        return self.drafter.keeper

    @property
    def request(self) -> FeatureRequest:
        return self.drafter.request

    @property
    def max_drafts(self) -> int | None:
        return self.drafter.max_drafts

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Part | None:
        return self.drafter.init_state(batch, capacity, rows=rows, chunk=chunk, kv_types=kv_types)

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: Any,
        length: Int[Array, "B"],
    ) -> Any:
        return self.drafter.extend(params, tokens, features, n_valid, state, length)

    def narrowed(self, params: Params, state: Any, length: Int[Array, "B"], rows: int) -> Any:
        return self.drafter.narrowed(params, state, length, rows)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: Any) -> Window | None:
        return self.drafter.observe(tokens, features, state)

    def hidden_norm(self, state: Any) -> Float[Array, "B"] | None:
        return self.drafter.hidden_norm(state)


@dataclass(frozen=True)
class OnEveryDevice(RunningDrafter):
    """A drafter that does not say how it is split: every device of a split model runs it whole, with its parameters.

    All devices compute the same. What they have parts of, it is not given: the model's own parameters and states.
    """

    @contextmanager
    def _own(self, params: Params) -> Iterator[Params]:
        try:
            yield {name: branch for name, branch in params.items() if name not in _OF_MODELS}
        except KeyError as error:
            if error.args[0] not in _OF_MODELS:
                raise
            raise ValueError(
                f"{' and '.join(self.class_names)} reads params[{error}] of a model that is split, so that each device"
                " has a part of it. Give its class a method shard(parts), which returns the drafter of one part; see"
                " specjax.models.protocol.Drafter"
            ) from error

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: Any,
        length: Int[Array, "B"],
    ) -> Any:
        with self._own(params) as own:
            return self.drafter.extend(own, tokens, features, n_valid, state, length)

    def narrowed(self, params: Params, state: Any, length: Int[Array, "B"], rows: int) -> Any:
        with self._own(params) as own:
            return self.drafter.narrowed(own, state, length, rows)

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
        """What the drafter proposes. Its logits are whole, and every device goes on with its columns of them."""

        def choose_together(
            logits: Float[Array, "B Ma"],
            position: Int[Array, "B"],
            tokens: Int[Array, "B Ma"] | None = None,
            before: Drafted | None = None,
        ) -> Choice:
            return choose(own_columns(logits, -jnp.inf), position, tokens, before)

        with self._own(params) as own:
            return self.drafter.propose(
                own,
                pending,
                replace(state, layers=()),
                num_drafts=num_drafts,
                choose=choose_together,
                keep_going=keep_going,
            )


_OF_MODELS = ("target", "mtp")
"""The branches of parameters that come with models, and are split."""
