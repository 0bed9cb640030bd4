"""What most drafters would answer alike."""

from __future__ import annotations

from typing import Any, Self

from jaxtyping import Array, Float, Int

from specjax.models.protocol import FeatureRequest, Features, Params, Target
from specjax.state import KVTypes, Part, Window


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

    def shard(self, parts: int) -> Self:
        """The drafter itself on one device, else refused; replace this if it can be split, or needs not be."""
        if parts == 1:
            return self
        raise ValueError(f"{' and '.join(self.class_names)} cannot draft for a model that is split into {parts} parts")

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
