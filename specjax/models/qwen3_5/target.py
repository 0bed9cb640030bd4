"""The Qwen3.5 trunk behind the target protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.models.apply import apply
from specjax.models.protocol import FeatureRequest, Features, Params, Rows, TargetOutput
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.models.qwen3_5.modules import Trunk
from specjax.state import KVCache, RollbackStrategy, SequenceState, SequenceWindow, recurrent


@dataclass(frozen=True)
class Qwen35Target:
    """See `specjax.models.protocol.Target`."""

    config: Qwen35Config

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
    ) -> tuple[Any, ...]:
        """KV caches of `capacity` slots in `dtype`, recurrent states in float32."""
        del chunk
        c = self.config

        def init(kind: str) -> Any:
            if kind == FULL_ATTENTION:
                return KVCache.zeros(batch, capacity, c.num_kv_heads, c.head_width, dtype)
            return recurrent.zeros(
                rollback,
                batch=batch,
                rows=rows,
                value_heads=c.linear_value_heads,
                key_width=c.linear_key_width,
                value_width=c.linear_value_width,
                conv_channels=c.conv_channels,
                conv_width=c.conv_width,
            )

        return tuple(init(kind) for kind in c.layer_types)

    def _run(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        n_valid: Int[Array, "B"],
        state: SequenceState,
        request: FeatureRequest,
        rows: Rows,
        *,
        rollback: bool,
    ) -> tuple[TargetOutput, tuple[Any, ...]]:
        trunk, own = Trunk(self.config), params["target"]
        hidden, layer_inputs, layers = apply(
            trunk,
            own,
            tokens,
            state.length,
            n_valid,
            state.layers,
            rollback=rollback,
            layer_inputs=request.layer_inputs,
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
        output, layers = self._run(params, tokens, n_valid, state, request, rows, rollback=False)
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
        output, layers = self._run(params, tokens, n_valid, state, request, "all", rollback=True)
        return output, SequenceWindow(layers, None, state.length)
