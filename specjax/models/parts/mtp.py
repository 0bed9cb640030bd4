"""Multi-token-prediction heads, which come with their target and read its final hidden states.

The hidden state before the first token is zero, as in llama.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from jaxtyping import Array, Bool, Float, Int

from specjax.models.parts.head import Head, MTPBlock, Own
from specjax.models.parts.paired import PairedDrafter, PairedState, RepeatedDrafter
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import Call, TrunkTarget
from specjax.models.protocol import Choice, ChooseDraft, Drafted, FeatureRequest, Params
from specjax.state import KVTypes


@dataclass(frozen=True)
class MTPDrafter(PairedDrafter):
    """A drafter of MTP heads, which come with their target: what heads have in common as drafters.

    Attributes:
        config: of the target and its heads.
        target_type: the class of the target.
    """

    config: Any
    target_type: ClassVar[type[TrunkTarget]]

    def shard(self, parts: int) -> Self:
        """The heads of one part of the model."""
        return self if parts == 1 else replace(self, config=self.config.shard(parts))

    @property
    def target(self) -> TrunkTarget:
        """The target that the heads came with."""
        return self.target_type(self.config)

    @property
    def request(self) -> FeatureRequest:
        """The hidden states that leave the target's trunk."""
        return FeatureRequest(final_hidden=True)


@dataclass(frozen=True)
class RepeatedHead(RepeatedDrafter, MTPDrafter):
    """One block, run as many times as drafts are wanted, each time on its own last hidden row after its norm.

    The target's hidden rows, too, are those after the norm. The config says what the block has of its own:
    `mtp_own_embedding`, `mtp_own_output` and `mtp_own_norm`.

    Attributes:
        kind: of the block's layer, see `Trunk`.
    """

    kind: ClassVar[Any]

    @property
    def block(self) -> MTPBlock:
        """The block that drafts. Its layer is one as those of the trunk."""
        c = self.config
        own = Own(embedding=c.mtp_own_embedding, output=c.mtp_own_output, norm=c.mtp_own_norm)
        return MTPBlock(c, self.target.trunk.make_layer(self.kind), own)

    def head_paths(self) -> tuple[str, ...]:
        return ("mtp.lm_head.weight",) if self.config.mtp_own_output else self.target.head_paths()

    def init_cache(self, batch: int, capacity: int, kv_types: KVTypes) -> Any:
        """The empty cache of the block."""
        return self.target.init_state(self.kind, Room(batch, capacity, kv_types=kv_types))

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> PairedState:
        """An empty cache, with the zero row before the first token waiting."""
        del chunk
        kv = self.init_cache(batch, capacity, kv_types)
        return PairedState.start(kv, batch, rows, self.config.width, zero_row=True)

    def head(self, params: Params) -> Head:
        """The head with its parameters."""
        return Head(self.block, params["mtp"], self.target, params)

    def run(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        hidden: Float[Array, "B T D"],
        positions: Int[Array, "B T"],
        valid: Bool[Array, "B T"],
        kv: Any,
    ) -> tuple[Float[Array, "B T D"], Any]:
        """The head's normed hidden rows (what its output head and its own next step read), and the cache."""
        head = self.head(params)
        out, kv = head.run(tokens, hidden, Call(positions, valid), kv)
        return head.norm(out), kv

    def logits(self, params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of the head's normed hidden rows."""
        return self.head(params).logits(hidden)

    def choose_next(
        self,
        params: Params,
        hidden: Float[Array, "B D"],
        position: Int[Array, "B"],
        before: Drafted | None,
        choose: ChooseDraft,
    ) -> Choice:
        """A draft from the logits of the hidden row."""
        return choose(self.logits(params, hidden), position, before=before)
