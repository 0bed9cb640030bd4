"""DFlash, DFlash 2 and DSpark: a block of masks is filled in one pass, from features of the target.

The features of committed tokens, fused from several layers of the target, are keys and values of the drafter's layers.
The features of the pending token are not known before it is verified: a block begins with the pending token itself.
What a block leaves in the caches is overwritten, by features or by the next block, before anything reads it.

A block is run as a whole, as in training, however few drafts are wanted: with slots that see each other, drafts of a
shorter block are other drafts. llama.cpp cuts it. Where no slot sees a later one, slots without use are left out here
too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.mesh.columns import own_columns, top_k
from specjax.mesh.rows import anywhere
from specjax.models.drafters.dflash.config import DFlashConfig
from specjax.models.drafters.dflash.modules import DFlash, make_caches
from specjax.models.drafters.dflash.state import FeatureState, FeatureWindow, Rows
from specjax.models.drafters.fused import FusedDrafter, file_drafter
from specjax.models.parts.apply import in_device_memory
from specjax.models.parts.chain import draft_chain
from specjax.models.parts.room import Room
from specjax.models.protocol import Choice, ChooseDraft, Drafted, Features, FileDrafter, KeepGoing, Params, Proposal
from specjax.state import KVTypes, SequenceState


@dataclass(frozen=True)
class DFlashDrafter(FusedDrafter):
    """A drafter that fills a block of masks in one pass, see `FusedDrafter`."""

    config: DFlashConfig
    part = "dflash"
    module_type = DFlash

    @property
    def max_drafts(self) -> int:
        """As many as a block has slots for."""
        return self.config.num_drafts

    def head_paths(self) -> tuple[str, ...]:
        """With a Markov head also what its corrections are products with."""
        if self.config.selector is not None:
            raise ValueError("the drafter has a selector, which looks up tokens by their place among all logits")
        markov = () if self.config.markov is None else (f"{self.part}.markov.out.weight",)
        return (*super().head_paths(), *markov)

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> FeatureState:
        """Empty caches, with room for a block behind the last token."""
        room = Room(batch, capacity + self.config.block_size, rows + chunk, kv_types)
        features = jnp.zeros((batch, rows, self.config.num_features * self.config.width), jnp.float32)
        return FeatureState(make_caches(self.config, room), features, jnp.zeros((batch,), jnp.int32))

    def inject(self, params: Params, rows: Rows, kv: Any) -> Any:
        """The caches with the features of verified tokens."""
        features = self.as_embedded(params, rows.features)
        return self.apply(params, "inject", features, rows.positions, rows.valid, kv)

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: FeatureState,
        length: Int[Array, "B"],
    ) -> FeatureState:
        """Inject the features that wait, and those of the tokens."""
        del tokens
        rows = state.then(self.rows_of(features), n_valid, length)
        kv = self.inject(params, rows, state.kv)
        return replace(state, kv=kv, count=jnp.where(n_valid > 0, 0, state.count))

    def narrowed(self, params: Params, state: FeatureState, length: Int[Array, "B"], rows: int) -> FeatureState:
        """Inject all features that wait, if too many wait anywhere."""
        if state.features.shape[1] <= rows:
            return state
        params = jax.tree.map(in_device_memory, params)  # XLA fails on host memory that a conditional reads

        def injected() -> FeatureState:
            kv = self.inject(params, state.waiting(length), state.kv)
            return replace(state, kv=kv, count=jnp.zeros_like(state.count))

        return jax.lax.cond(anywhere(state.count > rows), injected, lambda: state)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: FeatureState) -> FeatureWindow:
        """The features of verified tokens will wait for the next round."""
        del tokens
        return FeatureWindow(state, self.rows_of(features))

    def hidden_norm(self, state: FeatureState) -> Float[Array, "B"]:
        """The norm of the last token's features; 0 if none wait."""
        last = jnp.maximum(state.count - 1, 0)[:, None, None]
        norm = jnp.linalg.norm(jnp.take_along_axis(state.features, last, axis=1)[:, 0], axis=-1)
        return jnp.where(state.count > 0, norm, 0)

    def block(
        self, params: Params, pending: Int[Array, "B"], start: Int[Array, "B"], kv: Any, num_drafts: int
    ) -> tuple[Float[Array, "B S D"], Any]:
        """The hidden states of a block's slots, normed for the output head, and the caches with the block in them."""
        c = self.config
        needed = num_drafts if c.from_anchor else num_drafts + 1
        slots = needed if all(c.causal) else c.block_size
        masks = jnp.full((pending.shape[0], slots - 1), c.mask_token, jnp.int32)
        tokens = jnp.concatenate([pending[:, None], masks], axis=1)
        return self.apply(params, None, self.embed(params, tokens), start, kv)

    def propose(
        self,
        params: Params,
        pending: Int[Array, "B"],
        state: SequenceState,
        *,
        num_drafts: int,
        choose: ChooseDraft,
        keep_going: KeepGoing,
    ) -> Proposal:
        """One pass over a block, and then a choice after the other."""
        own, length, c = state.drafter, state.length, self.config
        kv = self.inject(params, own.earliest(num_drafts + 1).waiting(length), own.kv)
        near = jax.tree.map(in_device_memory, params)

        def first(kv: Any) -> tuple[Choice, tuple, Any]:
            hidden, kv = self.block(near, pending, length, kv, num_drafts)
            first_slot = 0 if c.from_anchor else 1
            drafting = hidden[:, first_slot : first_slot + num_drafts]
            slots = jnp.swapaxes(drafting, 0, 1), jnp.swapaxes(self.scores(near, drafting), 0, 1)
            memory: Any = ()
            if c.markov is not None:
                memory = self.apply(near, "begin", pending.shape[0])
                if not c.from_anchor:  # in training the memory runs through the slot that drafts nothing
                    memory = self.apply(near, "correct", pending, hidden[:, 0], memory)[2]
            choice, memory = self._choice(near, pending, slots[0][0], slots[1][0], length + 1, memory, None, choose)
            return choice, (memory, slots), kv

        def step(index: Array, before: Drafted, carry: tuple, kv: Any) -> tuple[Choice, tuple, Any]:
            memory, (hidden, base) = carry
            slot = hidden[index], base[index]
            choice, memory = self._choice(params, before.token, *slot, length + index + 1, memory, before, choose)
            return choice, (memory, (hidden, base)), kv

        drafts, kv = draft_chain(first, step, kv, num_drafts=num_drafts, keep_going=keep_going)
        return Proposal(*drafts, state=replace(own, kv=kv))

    def _choice(
        self,
        params: Params,
        token: Int[Array, "B"],
        hidden: Float[Array, "B D"],
        logits: Float[Array, "B M"],
        position: Int[Array, "B"],
        memory: Any,
        before: Drafted | None,
        choose: ChooseDraft,
    ) -> tuple[Choice, Any]:
        """A draft for a slot after a token, which may be the draft `before`, and what the Markov head remembers."""
        c, tokens, embedding = self.config, self.scored_tokens(params, logits), None
        if c.markov is not None:
            correction, embedding, memory = self.apply(params, "correct", token, hidden, memory)
            logits = logits + correction
        if c.selector is not None:
            logits, best = top_k(logits, c.selector.top_k)
            tokens = best if tokens is None else jnp.take_along_axis(tokens, best, axis=1)
            logits = own_columns(logits + self.apply(params, "select", token, hidden, tokens), -jnp.inf)
        choice = choose(logits, position, tokens, before)
        if c.confidence is not None:
            # It depends on the tokens before this draft and not on the draft, as `Choice.confidence` must.
            read = embedding if c.confidence == "both" else None
            choice = choice._replace(confidence=jax.nn.sigmoid(self.apply(params, "sureness", hidden, read)))
        return choice, memory


def from_file(config: DFlashConfig) -> FileDrafter:
    """How a block drafter drafts for a target."""
    return file_drafter(config, config.width, DFlashDrafter, DFlashDrafter.part)
