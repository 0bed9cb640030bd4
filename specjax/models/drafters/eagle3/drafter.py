"""EAGLE-3: a small decoder over pairs of a token and a feature, fused from several layers of the target.

The feature of a verified token is fused from what the target made of it; while drafting, the drafter's own output
takes its place. So all that was drafted is fed again, from the target's features, once it is verified.

A pair stands at the position of its feature, one before its token's, as in llama.cpp: the first token is in no pair,
and a slot that nothing was written to would be seen by all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.modules import Eagle3, make_caches
from specjax.models.drafters.fit import check_fit, usual_layers
from specjax.models.parts.apply import apply
from specjax.models.parts.paired import PairedState, RepeatedDrafter
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import Call
from specjax.models.protocol import Choice, ChooseDraft, FeatureRequest, Features, FileDrafter, Params, Target
from specjax.state import KVCache, KVTypes


@dataclass(frozen=True)
class Eagle3Drafter(RepeatedDrafter):
    """See `specjax.models.protocol.Drafter`. Its parameters are `params["eagle3"]`.

    Attributes:
        target: whose layers it reads, and whose embedding table and output head if it has none of its own.
        config: its hyper-parameters; `target_layers` names the layers.
    """

    target: Target
    config: Eagle3Config

    @property
    def request(self) -> FeatureRequest:
        """The inputs of the target's layers."""
        return FeatureRequest(layer_inputs=self.config.target_layers)

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> PairedState:
        """Empty caches; nothing waits, because the first token is in no pair."""
        room = Room(batch, capacity, max(rows - 1 + chunk, 2 * rows - 2), kv_types)
        width = self.config.num_features * self.config.target_width
        return PairedState.start(make_caches(self.config, room), batch, rows, width, zero_row=False)

    def rows_of(self, features: Features) -> Float[Array, "B T features"]:
        """The inputs of the layers, one behind the other."""
        return jnp.concatenate(features.layer_inputs, axis=-1)

    def embed(self, params: Params, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows of the drafter's embedding table, or of the target's."""
        if self.config.own_embedding:
            return apply(Eagle3(self.config), params["eagle3"], tokens, method="embed_tokens")
        return self.target.embedding_rows(params, tokens)

    def enter(self, params: Params, rows: Float[Array, "B T features"]) -> Float[Array, "B T D"]:
        """The fused features of verified tokens."""
        kind = jax.eval_shape(self.embed, params, jax.ShapeDtypeStruct((1, 1), jnp.int32)).dtype
        return apply(Eagle3(self.config), params["eagle3"], rows.astype(kind), method="fuse")

    def run(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        kv: tuple[KVCache, ...],
    ) -> tuple[Float[Array, "B T D"], tuple[KVCache, ...]]:
        """What the next step takes as its feature, and the caches with the valid rows; positions are the tokens'."""
        embedded = self.embed(params, tokens)
        call = Call(jnp.maximum(positions - 1, 0), valid)
        return apply(Eagle3(self.config), params["eagle3"], embedded, hidden.astype(embedded.dtype), call, kv)

    def logits(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... M"]:
        """Float32 logits of the drafter's M tokens, of hidden rows that `run` gave."""
        own, model = params["eagle3"], Eagle3(self.config)
        normed = apply(model, own, hidden, method="head_input")
        if self.config.own_output:
            return apply(model, own, normed, method="project")
        logits = self.target.unembed(params, normed)
        return logits[..., own["tokens"]] if self.config.maps_tokens else logits

    def choose_next(
        self, params: Params, hidden: Float[Array, "B D"], position: Int[Array, "B"], choose: ChooseDraft
    ) -> Choice:
        """A draft from the tokens that the drafter knows."""
        logits = self.logits(params, hidden)
        tokens = jnp.broadcast_to(params["eagle3"]["tokens"], logits.shape) if self.config.maps_tokens else None
        return choose(logits, position, tokens)


def from_file(config: Eagle3Config) -> FileDrafter:
    """How an EAGLE-3 drafter drafts for a target."""

    def attach(target: Target) -> Eagle3Drafter:
        layers = config.target_layers or usual_layers(target.num_layers)
        check_fit(
            target,
            vocab_size=config.vocab_size,
            target_width=config.target_width,
            layers=layers,
            width=config.width,
            shares_embedding=not config.own_embedding,
            shares_output=not config.own_output,
        )
        return Eagle3Drafter(target, replace(config, target_layers=layers))

    return FileDrafter(part="eagle3", under=None, own_vocabulary=True, attach=attach)
