"""The chained MTP heads of Step-3.5 behind the drafter protocol: head j makes the draft at index j of a round.

What a head's cache holds, which is what llama.cpp's `common/speculative.cpp` (`chain_heads`) leaves in it:

- **Committed positions.** Every head, and not the first alone, has for each committed position p the row (target's
  hidden state of p - 1, token at p), see `specjax.models.parts.paired`. A later head does not read what an
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

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.mesh.rows import anywhere
from specjax.models.parts.apply import in_device_memory
from specjax.models.parts.head import Head, MTPBlock, Own
from specjax.models.parts.mtp import MTPDrafter
from specjax.models.parts.paired import PairedState, Pairs
from specjax.models.parts.room import Room
from specjax.models.parts.trunk import Call
from specjax.models.protocol import Choice, ChooseDraft, Drafted, KeepGoing, Params, Proposal
from specjax.models.step3_5.config import Step35Config
from specjax.models.step3_5.modules import DecoderLayer, rotary
from specjax.models.step3_5.target import Step35Target
from specjax.state import KVCache, KVTypes, SequenceState


def mtp_block(config: Step35Config, index: int) -> MTPBlock:
    """The module of one head; its parameters are given when it runs."""
    head = config.heads[index]
    own = Own(embedding=head.own_embedding, output=head.own_output, norm=head.own_norm)
    return MTPBlock(config, DecoderLayer(config, head.layer), own)


@dataclass(frozen=True)
class Step35MTP(MTPDrafter):
    """See `MTPDrafter`. Each head makes one draft; heads that a round cannot use are not run."""

    config: Step35Config
    target_type = Step35Target

    @property
    def max_drafts(self) -> int | None:
        """One draft for each head that the file has."""
        return self.config.mtp_layers

    def head_paths(self) -> tuple[str, ...]:
        """Of all heads; those that share the target's name it once."""
        own = [f"mtp.heads_{index}.lm_head.weight" for index, head in enumerate(self.config.heads) if head.own_output]
        shares = len(own) < len(self.config.heads)
        return (*own, *(self.target.head_paths() if shares else ()))

    def init_state(
        self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes = KVTypes()
    ) -> PairedState:
        """Empty caches of the first `rows` - 1 heads, with the zero row before the first token waiting."""
        drafts = rows - 1
        room = Room(batch, capacity, max(rows - 1 + chunk, rows + drafts - 1), kv_types)
        kv = tuple(self.target.init_state(head.layer, room) for head in self.config.heads[:drafts])
        return PairedState.start(kv, batch, rows, self.config.width, zero_row=True)

    def head(self, params: Params, index: int) -> Head:
        """A head with its parameters."""
        return Head(mtp_block(self.config, index), params["mtp"][f"heads_{index}"], self.target, params)

    def run(self, params: Params, index: int, pairs: Pairs, cache: KVCache) -> tuple[Float[Array, "B T D"], KVCache]:
        """Feed rows to a head: its hidden rows, which its output and the next head read, and its cache."""
        factors = params["target"].get("rope_factors")
        shared = rotary(self.config, None if factors is None else in_device_memory(factors))
        call = Call(pairs.positions, pairs.valid, shared=shared)
        return self.head(params, index).run(pairs.tokens, pairs.hidden, call, cache)

    def logits(self, params: Params, index: int, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
        """Float32 logits of a head's hidden rows."""
        head = self.head(params, index)
        return head.logits(head.norm(hidden))

    def feed(self, params: Params, pairs: Pairs, kv: tuple[KVCache, ...]) -> tuple[KVCache, ...]:
        """Feed every head the same pairs."""
        return tuple(self.run(params, index, pairs, cache)[1] for index, cache in enumerate(kv))

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
        pairs = own.latest(num_drafts + 1).pairs(pending[:, None], own.hidden[:, :0], jnp.ones_like(pending), length)
        kv: list[KVCache] = []
        choices: list[Choice] = []
        going = keep_going(jnp.ones(pending.shape, jnp.float32), 0)
        for index, cache in enumerate(own.kv):
            out, cache = self.run(params, index, pairs, cache)
            kv.append(cache)
            if index >= num_drafts:  # caught up, so that a longer round may follow
                continue
            hidden = out[:, -1]
            before = choices[-1].drafted if choices else None
            choice = self._choice(params, index, hidden, length + index + 1, before, choose, anywhere(going))
            choices.append(choice)
            going = going & keep_going(choice.confidence, index + 1)
            pairs = _with_draft(pairs, choice.token, hidden, length + index + 1)
        chosen = jax.tree.map(lambda *columns: jnp.stack(columns, axis=1), *choices)
        return Proposal(chosen.token, chosen.logq, chosen.confidence, state=replace(own, kv=tuple(kv)))

    def _choice(
        self,
        params: Params,
        index: int,
        hidden: Float[Array, "B D"],
        position: Int[Array, "B"],
        before: Drafted | None,
        choose: ChooseDraft,
        going: Array,
    ) -> Choice:
        """What a head drafts; zeros, at no cost, if no row keeps going."""
        params = jax.tree.map(in_device_memory, params)  # XLA fails on host memory that a conditional reads

        def draft() -> Choice:
            choice = choose(self.logits(params, index, hidden), position, before=before)
            return choice._replace(token=choice.token.astype(jnp.int32))

        def nothing() -> Choice:
            return jax.tree.map(jnp.zeros_like, jax.eval_shape(draft))

        return jax.lax.cond(going, draft, nothing)


def _with_draft(pairs: Pairs, token: Int[Array, "B"], hidden: Float[Array, "B D"], position: Int[Array, "B"]) -> Pairs:
    """One more row: a draft and the hidden state that it was made from."""
    row = Pairs(
        token[:, None], hidden[:, None].astype(jnp.float32), position[:, None], jnp.ones_like(pairs.valid[:, :1])
    )
    return jax.tree.map(lambda rows, new: jnp.concatenate([rows, new], axis=1), pairs, row)
