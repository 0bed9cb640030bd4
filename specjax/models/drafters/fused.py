"""Drafters in files of their own that read inputs of several layers of their target, and share tables with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.mesh.columns import own_columns, values_at
from specjax.models.drafters.fit import check_fit, usual_layers
from specjax.models.parts.apply import apply, in_device_memory
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import Drafter, FeatureRequest, Features, FileDrafter, Params, Target


@dataclass(frozen=True)
class FusedDrafter(BaseDrafter):
    """What such drafters have in common.

    The module has the methods `embed_tokens` and `project`, and the parameter `tokens` if the drafter knows some of the
    target's tokens only.

    Attributes:
        target: whose layers it reads, and whose embedding table and output head if it has none of its own.
        config: its hyper-parameters; `target_layers` names the layers. `own_embedding`, `own_output` and `maps_tokens`
            say what parameters there are, `heads_itself` whether its own head gives its logits.
        part: the branch of its parameters.
        module_type: its module.
    """

    target: Target
    config: Any
    part: ClassVar[str]
    module_type: ClassVar[type[nn.Module]]

    def head_paths(self) -> tuple[str, ...]:
        """The drafter's own head, or the target's. A head for fewer tokens is small already, and stays whole."""
        c = self.config
        if c.maps_tokens:
            raise ValueError(
                f"the drafter scores only {c.draft_vocab_size} of {c.vocab_size} tokens already: it was trained for"
                " those"
            )
        if not c.heads_itself:
            return self.target.head_paths()
        return (f"{self.part}.{'lm_head' if c.own_output else 'embed'}.weight",)

    def shard(self, parts: int) -> Self:
        """Split as the target is. Every part knows which tokens those of the drafter are."""
        return self if parts == 1 else replace(self, target=self.target.shard(parts), config=self.config.shard(parts))

    @property
    def request(self) -> FeatureRequest:
        """The inputs of the target's layers."""
        return FeatureRequest(layer_inputs=self.config.target_layers)

    def rows_of(self, features: Features) -> Float[Array, "B T features"]:
        """The inputs of the layers, one behind the other."""
        return jnp.concatenate(features.layer_inputs, axis=-1)

    def apply(self, params: Params, method: str | None, *args: Any) -> Any:
        """What a method of the module returns; None calls the module."""
        return apply(self.module_type(self.config), params[self.part], *args, method=method)

    def embed(self, params: Params, tokens: Int[Array, "B T"]) -> Float[Array, "B T D"]:
        """Rows of the drafter's embedding table, or of the target's."""
        if self.config.own_embedding:
            return self.apply(params, "embed_tokens", tokens)
        return self.target.embedding_rows(params, tokens)

    def as_embedded(self, params: Params, rows: Float[Array, "B T features"]) -> Float[Array, "B T features"]:
        """The rows in the type of embeddings, in which the drafter computes."""
        return rows.astype(jax.eval_shape(self.embed, params, jax.ShapeDtypeStruct((1, 1), jnp.int32)).dtype)

    def known_tokens(self, params: Params) -> Int[Array, "M"] | None:
        """The target's tokens that the drafter knows; None for all."""
        return in_device_memory(params[self.part]["tokens"]) if self.config.maps_tokens else None

    def scores(self, params: Params, normed: Float[Array, "... D"]) -> Float[Array, "... M"]:
        """Float32 logits of the tokens that the drafter knows, of which a part has its columns."""
        own, tokens = self.config.heads_itself, self.known_tokens(params)
        logits = self.apply(params, "project", normed) if own else self.target.unembed(params, normed)
        if tokens is None or self.config.own_output:
            return logits
        known = values_at(logits, jnp.broadcast_to(tokens, (*logits.shape[:-1], tokens.size)))
        return own_columns(known, -jnp.inf)

    def scored_tokens(self, params: Params, logits: Float[Array, "B M"]) -> Int[Array, "B Ma"] | None:
        """Which tokens logits are of, as `ChooseDraft` takes them."""
        tokens = self.known_tokens(params)
        return None if tokens is None else jnp.broadcast_to(tokens, (logits.shape[0], tokens.size))


def file_drafter(config: Any, target_width: int, make: Callable[[Target, Any], Drafter], part: str) -> FileDrafter:
    """How a drafter in a file of its own drafts for a target.

    Args:
        config: of the drafter.
        target_width: D of the target that it was made for.
        make: (target, config with the layers that are read) -> the drafter.
        part: the branch of its parameters.
    """

    def attach(target: Target) -> Drafter:
        layers = config.target_layers or usual_layers(target.num_layers)
        check_fit(
            target,
            vocab_size=config.vocab_size,
            target_width=target_width,
            layers=layers,
            width=config.width,
            shares_embedding=not config.own_embedding,
            shares_output=not config.heads_itself,
        )
        return make(target, replace(config, target_layers=layers))

    return FileDrafter(part=part, under=None, own_vocabulary=True, attach=attach)
