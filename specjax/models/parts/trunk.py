"""The trunk that decoder-only models have in common, and such a trunk behind the target protocol."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.layers.linear import Embedding, VocabularyLinear
from specjax.layers.norm import RMSNorm
from specjax.models.parts.apply import apply
from specjax.models.parts.room import Room
from specjax.models.protocol import FeatureRequest, Features, Params, Rows, TargetOutput
from specjax.state import KVTypes, RollbackStrategy, SequenceState, SequenceWindow


class Call(NamedTuple):
    """What all layers of a call are told.

    Attributes:
        positions: of each row.
        valid: which rows are tokens; what the others become means nothing.
        n_valid: how many rows are, if they come first; None if they stand elsewhere, as those of heads do.
        rollback: whether some of the tokens may be taken back.
        shared: what the family computes once for all layers, see `Trunk.shared`.
    """

    positions: Int[Array, "B T"]
    valid: Bool[Array, "B T"]
    n_valid: Int[Array, "B"] | None = None
    rollback: bool = False
    shared: Any = None


class Trunk(nn.Module):
    """Embedding, layers, final norm and output head.

    A family gives `make_layer`, and replaces what is different in it. Its config has `vocab_size`, `width`, `norm_eps`,
    `tied_embeddings`, and `layer_kinds`, which has an entry for each layer: what distinguishes it from others.
    """

    config: Any

    def setup(self) -> None:
        c = self.config
        self.embed = Embedding(c.vocab_size, c.width)
        self.layers = [self.make_layer(kind) for kind in c.layer_kinds]
        self.norm = RMSNorm(c.norm_eps)
        if not c.tied_embeddings:
            self.lm_head = VocabularyLinear(c.vocab_size)

    @nn.nowrap
    def make_layer(self, kind: Any) -> Any:
        """A layer of a kind. It is called as layer(x, call, state), see `run_layer`."""
        raise TypeError(f"{type(self).__name__} makes no layers")

    def __call__(
        self,
        tokens: Int[Array, "B T"],
        length: Int[Array, "B"],
        n_valid: Int[Array, "B"],
        layers: tuple[Any, ...],
        *,
        rollback: bool = False,
        layer_inputs: tuple[int, ...] = (),
    ) -> tuple[Float[Array, "B T D"], tuple[Float[Array, "B T D"], ...], tuple[Any, ...]]:
        """Run the first `n_valid` tokens of each row at positions length, length + 1, ...

        Returns:
            The hidden states that `logits` and the family's drafter read, the inputs of the layers named in
            `layer_inputs` (L names the output of the last layer), and the new states (windows, with `rollback`).
        """
        steps = jnp.arange(tokens.shape[1])
        x = self.embed_tokens(tokens)
        call = Call(length[:, None] + steps, steps < n_valid[:, None], n_valid, rollback, self.shared(tokens, x))
        states, inputs = list(layers), {}
        for index in range(len(self.layers)):
            inputs[index] = x
            at = self.state_of(index)
            x, states[at] = self.run_layer(index, x, call, states[at])
        inputs[len(self.layers)] = x
        return self.features(x), tuple(inputs[index] for index in layer_inputs), tuple(states)

    def shared(self, tokens: Int[Array, "B T"], x: Float[Array, "B T D"]) -> Any:
        """What is computed once for all layers; `x` are the tokens' embeddings."""
        del tokens, x
        return None

    def state_of(self, index: int) -> int:
        """Which of the states a layer reads and writes."""
        return index

    def run_layer(
        self, index: int, x: Float[Array, "B T D"], call: Call, state: Any
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The residual stream after a layer, and the layer's new state."""
        return self.layers[index](x, call, state)

    def features(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
        """Which hidden states leave the trunk: those after the final norm."""
        return self.norm(x)

    def logits(self, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of hidden states as `features` gives them."""
        return self.project(hidden)

    def embed_tokens(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """What tokens enter the layers as."""
        return self.embed(tokens)

    def table_rows(self, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        """Rows of the embedding table as they are."""
        return self.embed(tokens)

    def final_norm(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        """Hidden states after the final norm."""
        return self.norm(x)

    def project(self, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of normed hidden states."""
        if self.config.tied_embeddings:
            return self.embed.unembed(normed)
        return self.lm_head(normed)


@dataclass(frozen=True)
class TrunkTarget:
    """See `specjax.models.protocol.Target`. A family gives `trunk_type` and `init_state`.

    Attributes:
        config: the family's hyper-parameters.
        trunk_type: its module.
    """

    config: Any
    trunk_type: ClassVar[type[Trunk]]

    @property
    def trunk(self) -> Trunk:
        """The module with the layers."""
        return self.trunk_type(self.config)

    def init_layers(
        self,
        batch: int,
        capacity: int,
        *,
        rows: int,
        chunk: int,
        rollback: RollbackStrategy,
        kv_types: KVTypes = KVTypes(),
    ) -> tuple[Any, ...]:
        """The states of all layers that have one."""
        room = Room(batch, capacity, max(rows, chunk), kv_types, rows, rollback)
        return tuple(self.init_state(kind, room) for kind in self.state_kinds)

    def shard(self, parts: int) -> Self:
        """See `Target.shard`. The config says how it is divided."""
        return self if parts == 1 else replace(self, config=self.config.shard(parts))

    @property
    def state_kinds(self) -> Sequence[Any]:
        """Kinds of the layers that have a state of their own: of all."""
        return self.config.layer_kinds

    def init_state(self, kind: Any, room: Room) -> Any:
        """The empty state of a layer; each family gives its own."""
        raise TypeError(f"{type(self).__name__} gives its layers no state")

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def width(self) -> int:
        return self.config.width

    @property
    def num_layers(self) -> int:
        return self.config.num_layers

    @property
    def context_length(self) -> int:
        """The longest sequence that the model was made for, in tokens."""
        return self.config.context_length

    def embed(self, params: Params, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        return apply(self.trunk, params["target"], tokens, method="embed_tokens")

    def embedding_rows(self, params: Params, tokens: Int[Array, "..."]) -> Float[Array, "... D"]:
        return apply(self.trunk, params["target"], tokens, method="table_rows")

    def norm(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return apply(self.trunk, params["target"], hidden, method="final_norm")

    def unembed(self, params: Params, normed: Float[Array, "... D"]) -> Float[Array, "... V"]:
        return apply(self.trunk, params["target"], normed, method="project")

    def head_paths(self) -> tuple[str, ...]:
        return ("target.embed.weight" if self.config.tied_embeddings else "target.lm_head.weight",)

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
        own = params["target"]
        if unknown := [index for index in request.layer_inputs if not 0 <= index <= self.num_layers]:
            raise ValueError(
                f"inputs of the layers {unknown} are asked for; this target has layers 0 to {self.num_layers - 1}, and"
                f" {self.num_layers} names the output of the last one"
            )
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
