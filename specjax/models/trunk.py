"""A linen trunk behind the target protocol: what the families' targets share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Int

from specjax.models.apply import apply
from specjax.models.protocol import FeatureRequest, Features, Params, Rows, TargetOutput
from specjax.state import SequenceState, SequenceWindow


@dataclass(frozen=True)
class TrunkTarget:
    """See `specjax.models.protocol.Target`, of which a family adds `init_layers`.

    Attributes:
        config: the family's hyper-parameters.
    """

    config: Any

    @property
    def trunk(self) -> nn.Module:
        """The family's module.

        `trunk(tokens, length, n_valid, layers, rollback=..., layer_inputs=...)` gives the hidden states that `logits`
        and the family's drafter read, the inputs of the layers asked for, and the layers' new states (with `rollback`:
        windows); `trunk.logits(hidden)` gives float32 logits.
        """
        raise TypeError(f"{type(self).__name__} names no trunk")

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        """The longest sequence that the model was made for, in tokens."""
        return self.config.context_length

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
        own, last = params["target"], self.config.num_layers - 1
        if unknown := [index for index in request.layer_inputs if not 0 <= index <= last]:
            raise ValueError(f"inputs of the layers {unknown} are asked for; this target has layers 0 to {last}")
        hidden, layer_inputs, layers = apply(
            self.trunk,
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
            logits = apply(self.trunk, own, hidden, method="logits")
        elif rows == "last":
            last = jnp.maximum(n_valid - 1, 0)[:, None, None]
            logits = apply(self.trunk, own, jnp.take_along_axis(hidden, last, axis=1), method="logits")
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
