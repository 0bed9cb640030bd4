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
    def request(self) -> FeatureRequest:
        """Nothing."""
        return FeatureRequest()

    @property
    def max_drafts(self) -> int | None:
        """As many as one likes."""
        return None

    def attach(self, target: Target) -> Self:
        """Itself."""
        del target
        return self

    def parameters(self, target: Target) -> Params:
        """None."""
        del target
        return {}

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Part | None:
        """None."""
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
        """The state as it is."""
        del params, tokens, features, n_valid, length
        return state

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: Any) -> Window | None:
        """The state as it is."""
        del tokens, features
        return state

    def hidden_norm(self, state: Any) -> Float[Array, "B"] | None:
        """None."""
        del state
        return None
