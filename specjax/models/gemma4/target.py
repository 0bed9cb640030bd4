"""The Gemma 4 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.models.apply import apply
from specjax.models.gemma4.config import Gemma4Config
from specjax.models.gemma4.modules import Trunk
from specjax.models.protocol import FeatureRequest, Features, Params, Rows, TargetOutput
from specjax.state import KVCache, RollbackStrategy, SequenceState, SequenceWindow


@dataclass(frozen=True)
class Gemma4Target:
    """See `specjax.models.protocol.Target`. `SequenceState.layers` has the caches of the layers that write one."""

    config: Gemma4Config

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """The longest sequence that the model was made for, in tokens."""
        return self.config.context_length

    def init_layers(
        self, batch: int, capacity: int, *, rows: int, chunk: int, rollback: RollbackStrategy, dtype: Any = jnp.float32
    ) -> tuple[KVCache, ...]:
        """Rings for sliding layers and `capacity` slots for full ones, in `dtype`."""
        del rollback

        def init(index: int) -> KVCache:
            kind = self.config.attention(self.config.layer_types[index])
            shape = (batch, capacity, kind.num_kv_heads, kind.head_width)
            if kind.window is None:
                return KVCache.zeros(*shape, dtype)
            return KVCache.ring(*shape, dtype, window=kind.window, longest_call=max(rows, chunk))

        return tuple(init(index) for index in range(self.config.num_caches))

    def _run(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        n_valid: Int[Array, "B"],
        state: SequenceState,
        request: FeatureRequest,
        rows: Rows,
    ) -> tuple[TargetOutput, tuple[KVCache, ...]]:
        trunk, own = Trunk(self.config), params["target"]
        hidden, layer_inputs, caches = apply(
            trunk, own, tokens, state.length, n_valid, state.layers, layer_inputs=request.layer_inputs
        )
        logits = None
        if rows == "all":
            logits = apply(trunk, own, hidden, method="logits")
        elif rows == "last":
            last = jnp.maximum(n_valid - 1, 0)[:, None, None]
            logits = apply(trunk, own, jnp.take_along_axis(hidden, last, axis=1), method="logits")
        features = Features(hidden if request.final_hidden else None, layer_inputs)
        return TargetOutput(logits, features), caches

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        n_valid: Int[Array, "B"],
        state: SequenceState,
        *,
        request: FeatureRequest = FeatureRequest(),
        rows: Rows = "last",
    ) -> tuple[TargetOutput, SequenceState]:
        """Feed tokens that are final."""
        output, caches = self._run(params, tokens, n_valid, state, request, rows)
        return output, SequenceState(caches, state.drafter, state.length + n_valid)

    def verify(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        n_valid: Int[Array, "B"],
        state: SequenceState,
        *,
        request: FeatureRequest = FeatureRequest(),
    ) -> tuple[TargetOutput, SequenceWindow]:
        """Feed tokens that may be taken back."""
        output, caches = self._run(params, tokens, n_valid, state, request, "all")
        return output, SequenceWindow(caches, None, state.length)
