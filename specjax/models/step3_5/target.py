"""The Step-3.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.models.apply import apply
from specjax.models.protocol import FeatureRequest, Features, Params, Rows, TargetOutput
from specjax.models.step3_5.config import SLIDING_ATTENTION, LayerConfig, Step35Config
from specjax.models.step3_5.modules import Trunk
from specjax.state import KVCache, RollbackStrategy, SequenceState, SequenceWindow


def init_cache(
    config: Step35Config, layer: LayerConfig, batch: int, capacity: int, *, longest_call: int, dtype: Any
) -> KVCache:
    """The empty cache of a layer: a ring if it is a sliding one."""
    shape = (batch, capacity, config.attention(layer).num_kv_heads, config.head_width, dtype)
    if layer.attention == SLIDING_ATTENTION:
        return KVCache.ring(*shape, window=config.window, longest_call=longest_call)
    return KVCache.zeros(*shape)


@dataclass(frozen=True)
class Step35Target:
    """See `specjax.models.protocol.Target`. The final hidden feature is that before the final norm."""

    config: Step35Config

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
        """A cache of `capacity` slots for each full layer, a ring for each sliding one."""
        del rollback
        return tuple(
            init_cache(self.config, layer, batch, capacity, longest_call=max(rows, chunk), dtype=dtype)
            for layer in self.config.layers
        )

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
        hidden, layer_inputs, layers = apply(
            trunk, own, tokens, state.length, n_valid, state.layers, layer_inputs=request.layer_inputs
        )
        logits = None
        if rows == "all":
            logits = apply(trunk, own, hidden, method="logits")
        elif rows == "last":
            last = jnp.maximum(n_valid - 1, 0)[:, None, None]
            logits = apply(trunk, own, jnp.take_along_axis(hidden, last, axis=1), method="logits")
        features = Features(hidden if request.final_hidden else None, layer_inputs)
        return TargetOutput(logits, features), layers

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
        output, layers = self._run(params, tokens, n_valid, state, request, rows)
        return output, SequenceState(layers, state.drafter, state.length + n_valid)

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
        output, layers = self._run(params, tokens, n_valid, state, request, "all")
        return output, SequenceWindow(layers, None, state.length)
