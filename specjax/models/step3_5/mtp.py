"""The chained MTP heads of Step-3.5 behind the drafter protocol: head j makes the draft at index j of a round.

What a head's cache holds, which is what llama.cpp's `common/speculative.cpp` (`chain_heads`) leaves in it:

- **Committed positions.** Every head, and not the first alone, has for each committed position p the row (target's
  hidden state of p - 1, token at p), in the pairing of `specjax.models.mtp`. A later head does not read what an
  earlier one made of committed tokens. So one set of waiting rows serves all heads, and a round leaves behind the same
  caches whatever it drafted and however many drafts were accepted. (`MtpModel` of transformers differs: there head j
  reads at every position what head j - 1 made at the one before.)
- **The round's own positions.** With the pending token at position L and the drafts d1, d2, ..., head j is fed, besides
  the rows that waited (the last of which is the pending token's, at L, with the target's hidden state of L - 1), rows
  L + i for 1 <= i <= j: the draft d_i with the hidden state that head i - 1 drafted it from. Its last row predicts
  d_(j + 1). The j rows beyond L are its own, in its own cache: what another head wrote there is of no use to it.

After a round with n accepted drafts the target's hidden states of L .. L + n wait. Paired with the accepted drafts and
the new pending token, they are fed to every head at the next `propose`, at L + 1 .. L + n + 1, where they overwrite the
rows of the drafts; rows further on belong to rejected drafts and lie ahead of everything that is read until they, too,
are overwritten. Therefore each head runs once per round, over the waiting rows and its part of the chain at once, even
if an earlier head was so unsure that drafting stops: then only its output head is skipped.

Hidden states, of the target and of the heads, are those before the norm in front of the output head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.models.apply import apply, in_device_memory
from specjax.models.mtp import MTPState, MTPWindow, Pairs
from specjax.models.protocol import Choice, ChooseDraft, FeatureRequest, Features, KeepGoing, Params, Proposal
from specjax.models.step3_5.config import Step35Config
from specjax.models.step3_5.modules import MTPHead, Trunk
from specjax.models.step3_5.target import init_cache
from specjax.models.trunk import shift_caches
from specjax.state import KVCache, KVTypes, SequenceState, Shift

_Part = tuple[nn.Module, Any]
"""A module and its parameters."""


@dataclass(frozen=True)
class Step35MTP:
    """See `specjax.models.protocol.Drafter`. Each head makes one draft; heads that a round cannot use are not run."""

    config: Step35Config

    @property
    def request(self) -> FeatureRequest:
        """The hidden states before the target's final norm."""
        return FeatureRequest(final_hidden=True)

    @property
    def max_drafts(self) -> int | None:
        """One per head."""
        return self.config.mtp_layers

    @property
    def cannot_shift(self) -> str | None:
        """Nothing is in the way: the heads have caches only."""
        return None

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> MTPState:
        """Empty caches of the first `rows` - 1 heads, with the zero row before the first token waiting."""
        drafts = rows - 1
        longest_call = max(rows - 1 + chunk, rows + drafts - 1)
        kv = tuple(
            init_cache(self.config, head.layer, batch, capacity, longest_call=longest_call, kv_types=kv_types)
            for head in self.config.heads[:drafts]
        )
        return MTPState.start(kv, batch, rows, self.config.width)

    def run(self, params: Params, index: int, pairs: Pairs, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """Feed rows to a head: its hidden rows, which its output and the next head read, and its cache."""
        head, trunk = self._parts(params, index)
        embedding = head if self.config.heads[index].own_embedding else trunk
        embedded = apply(*embedding, pairs.tokens, method="embed_tokens")
        frequencies = apply(*trunk, method="frequencies")
        return apply(*head, embedded, pairs.hidden, pairs.positions, pairs.valid, cache, frequencies)

    def logits(self, params: Params, index: int, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of a head's hidden rows."""
        head, trunk = self._parts(params, index)
        own = self.config.heads[index]
        normed = apply(*(head if own.own_norm else trunk), hidden, method="final_norm")
        return apply(*(head if own.own_output else trunk), normed, method="project")

    def _parts(self, params: Params, index: int) -> tuple[_Part, _Part]:
        head = MTPHead(self.config, self.config.heads[index]), params["mtp"][f"heads_{index}"]
        return head, (Trunk(self.config), params["target"])

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: MTPState,
        length: Int[Array, "B"],
    ) -> MTPState:
        """Feed every pair that the tokens complete to each head; the hidden row of each row's last token waits."""
        hidden = features.final_hidden
        assert hidden is not None
        pairs = state.pairs(tokens, hidden[:, :-1], n_valid, length)
        kv = tuple(self.run(params, index, pairs, cache)[1] for index, cache in enumerate(state.kv))
        return state.fed(kv, hidden, n_valid)

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
        """One pass per head, over the waiting rows and the drafts so far.

        Raises:
            ValueError: more drafts are asked for than the state has heads for.
        """
        own, length = state.drafter, state.length
        if num_drafts > len(own.kv):
            raise ValueError(f"{num_drafts} drafts need as many heads; this state was made for {len(own.kv)}")
        pairs = own.pairs(pending[:, None], own.hidden[:, :0], jnp.ones_like(pending), length)
        kv, choices, going = [], [], jnp.array(True)
        for index, cache in enumerate(own.kv):
            out, cache = self.run(params, index, pairs, cache)
            kv.append(cache)
            if index >= num_drafts:  # caught up, so that a longer round may follow
                continue
            hidden = out[:, -1]
            choice = self._choice(params, index, hidden, length + index + 1, choose, jnp.any(going))
            choices.append(choice)
            going = going & keep_going(choice.confidence, index + 1)
            pairs = _with_draft(pairs, choice.token, hidden, length + index + 1)
        token, logq, confidence = jax.tree.map(lambda *columns: jnp.stack(columns, axis=1), *choices)
        return Proposal(
            tokens=token,
            logq=logq,
            confidence=confidence,
            hidden_norm=jnp.linalg.norm(own.hidden[:, -1], axis=-1),
            state=replace(own, kv=tuple(kv)),
        )

    def _choice(
        self,
        params: Params,
        index: int,
        hidden: Float[Array, "B D"],
        position: Int[Array, "B"],
        choose: ChooseDraft,
        going: Array,
    ) -> Choice:
        """What a head drafts; zeros, at no cost, if no row keeps going."""
        params = jax.tree.map(in_device_memory, params)  # XLA fails on host memory that a conditional reads

        def draft() -> Choice:
            choice = choose(self.logits(params, index, hidden), position)
            return choice._replace(token=choice.token.astype(jnp.int32))

        def nothing() -> Choice:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(draft))

        return draft() if index == 0 else jax.lax.cond(going, draft, nothing)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: MTPState) -> MTPWindow:
        """The verified rows will wait for the next round's passes."""
        assert features.final_hidden is not None
        return MTPWindow(state, tokens, features.final_hidden)

    def shift(self, params: Params, state: MTPState, shift: Shift) -> MTPState:
        """Move the caches of all heads; the rows that wait stand where they stand from the end."""
        of_kind = apply(Trunk(self.config), params["target"], method="frequencies")
        frequencies = [of_kind[head.layer.attention] for head in self.config.heads[: len(state.kv)]]
        return replace(state, kv=shift_caches(state.kv, frequencies, shift))


def _with_draft(pairs: Pairs, token: Int[Array, "B"], hidden: Float[Array, "B D"], position: Int[Array, "B"]) -> Pairs:
    """One more row: a draft and the hidden state that it was made from."""
    row = Pairs(
        token[:, None], hidden[:, None].astype(jnp.float32), position[:, None], jnp.ones_like(pairs.valid[:, :1])
    )
    return jax.tree.map(lambda rows, new: jnp.concatenate([rows, new], axis=1), pairs, row)
