"""EAGLE-3: a small decoder over pairs of a token and a feature, fused from several layers of the target.

The feature of a verified token is fused from what the target made of it; while drafting, the drafter's own output
takes its place. So all that was drafted is fed again, from the target's features, once it is verified.

A pair stands at the position of its feature, one before its token's, as in llama.cpp: the first token is in no pair,
and a slot that nothing was written to would be seen by all that follow.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.models.drafters.eagle3.config import Eagle3Config
from specjax.models.drafters.eagle3.modules import Eagle3, make_caches
from specjax.models.drafters.fused import FusedDrafter, file_drafter
from specjax.models.parts.paired import PairedState, RepeatedDrafter
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import Call
from specjax.models.protocol import Choice, ChooseDraft, Drafted, FileDrafter, Params
from specjax.state import KVCache, KVTypes


@dataclass(frozen=True)
class Eagle3Drafter(FusedDrafter, RepeatedDrafter):
    """A decoder over pairs of tokens and fused features, see `FusedDrafter`."""

    config: Eagle3Config
    part = "eagle3"
    module_type = Eagle3

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> PairedState:
        """Empty caches; nothing waits, because the first token is in no pair."""
        room = Room(batch, capacity, max(rows - 1 + chunk, 2 * rows - 2), kv_types)
        width = self.config.num_features * self.config.target_width
        return PairedState.start(make_caches(self.config, room), batch, rows, width, zero_row=False)

    def enter(self, params: Params, rows: Float[Array, "B T features"]) -> Float[Array, "B T D"]:
        """The fused features of verified tokens."""
        return self.apply(params, "fuse", self.as_embedded(params, rows))

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
        return self.apply(params, None, embedded, hidden.astype(embedded.dtype), call, kv)

    def logits(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... M"]:
        """Float32 logits of the drafter's M tokens, of hidden rows that `run` gave."""
        return self.scores(params, self.apply(params, "head_input", hidden))

    def choose_next(
        self,
        params: Params,
        hidden: Float[Array, "B D"],
        position: Int[Array, "B"],
        before: Drafted | None,
        choose: ChooseDraft,
    ) -> Choice:
        """A draft from the tokens that the drafter knows."""
        logits = self.logits(params, hidden)
        return choose(logits, position, self.scored_tokens(params, logits), before)


def from_file(config: Eagle3Config) -> FileDrafter:
    """How an EAGLE-3 drafter drafts for a target."""
    return file_drafter(config, config.target_width, Eagle3Drafter, Eagle3Drafter.part)
