"""Ordinary draft-model speculation: a small model with the target's vocabulary drafts for it.

The small model is a `Target` of its own, with its own state, and is always behind the large one by the tokens that
were committed since it last ran. `propose` feeds it these and the pending token, which gives the first draft, and then
its own drafts one by one. Of all that only the tokens up to the pending one are kept: the window of the first call is
committed once the round has shown which rows go on, and the drafts that stood are fed again in the next round.

Source: Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from specjax.mesh.columns import up_to, whole_width
from specjax.mesh.shards import parts
from specjax.models.parts.chain import draft_chain
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import (
    Choice,
    ChooseDraft,
    Drafted,
    Features,
    FileDrafter,
    KeepGoing,
    Params,
    Proposal,
    Target,
)
from specjax.state import Content, KVTypes, Part, SequenceState, SequenceWindow, Shift, commit


@struct.dataclass
class DraftModelState(Part):
    """The small model's state, and the committed tokens it has not been fed yet.

    Attributes:
        sequences: its committed state, `count` tokens behind the target's.
        tokens: [B, R]; the first `count` wait.
        count: [B].
    """

    sequences: SequenceState
    tokens: Int[Array, "B R"]
    count: Int[Array, "B"]

    @property
    def cannot_shift(self) -> str | None:
        """The reason why the small model cannot shift, or None."""
        reason = self.sequences.cannot_shift
        return reason and f"it drafts with a small model of which the same is true: {reason}"

    def shift(self, shift: Shift) -> DraftModelState:
        """Move what the small model was fed; the tokens that wait are among the last."""
        return replace(self, sequences=self.sequences.shift(shift._replace(length=self.sequences.length)))

    def contents(self, row: int, length: int) -> tuple[Content, ...]:
        """What the small model carries, at its own length, and the tokens that wait."""
        count = int(self.count[row])
        waiting = Content(("waiting tokens",), np.arange(length - count, length), np.asarray(self.tokens[row])[:count])
        return (*self.sequences.contents(row), waiting)

    def waiting_then(self, tokens: Int[Array, "B T"]) -> Int[Array, "B R+T"]:
        """The tokens that wait, and right behind them the given ones."""
        index = jnp.arange(self.tokens.shape[1] + tokens.shape[1]) - self.count[:, None]
        both = jnp.pad(self.tokens, ((0, 0), (0, tokens.shape[1])))
        new = jnp.take_along_axis(tokens, jnp.clip(index, 0, tokens.shape[1] - 1), axis=1)
        return jnp.where(index < 0, both, new)


@struct.dataclass
class DraftModelWindow:
    """The small model with the waiting tokens and the pending one in it, and the target's window.

    Attributes:
        before: the state before the round.
        fed: its window over the waiting tokens and the pending one.
        tokens: the target's window: the pending token and the drafts; None until it is known.
    """

    before: DraftModelState
    fed: SequenceWindow
    tokens: Int[Array, "B T"] | None

    def commit(self, n: Int[Array, "B"]) -> DraftModelState:
        """Keep what was fed, and let the drafts that stood wait; a row with n = 0 stays as it was before the round."""
        assert self.tokens is not None
        before, idle = self.before, n == 0
        drafts = jnp.pad(self.tokens[:, 1:], ((0, 0), (0, before.tokens.shape[1] - self.tokens.shape[1] + 1)))
        return DraftModelState(
            sequences=commit(self.fed, jnp.where(idle, 0, before.count + 1)),
            tokens=jnp.where(idle[:, None], before.tokens, drafts),
            count=jnp.where(idle, before.count, n - 1),
        )


@dataclass(frozen=True)
class DraftModel(BaseDrafter):
    """See `specjax.models.protocol.Drafter`. Its parameters are `params["draft"]`, a tree like the target's.

    Attributes:
        model: the small model.
        vocab_size: V of the target; what the small model has beyond it is never drafted.
    """

    model: Target
    vocab_size: int

    def shard(self, parts: int) -> DraftModel:
        """The small model is split as the target is."""
        return self if parts == 1 else replace(self, model=self.model.shard(parts))

    def head_paths(self) -> tuple[str, ...]:
        return tuple(f"draft.{path}" for path in self.model.head_paths())

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> DraftModelState:
        """The state before the first token: nothing is fed, and no token waits."""
        layers = self.model.init_layers(
            batch, capacity, rows=rows + 1, chunk=chunk + rows, rollback="replay", kv_types=kv_types
        )
        sequences = SequenceState(layers, None, jnp.zeros((batch,), jnp.int32))
        return DraftModelState(sequences, jnp.zeros((batch, rows), jnp.int32), jnp.zeros((batch,), jnp.int32))

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: DraftModelState,
        length: Int[Array, "B"],
    ) -> DraftModelState:
        """Feed the waiting tokens and the new ones. Rows without new tokens keep waiting."""
        del features, length
        n = jnp.where(n_valid > 0, state.count + n_valid, 0)
        _, sequences = self.model.extend(
            params["draft"], state.waiting_then(tokens), n, state.sequences, request=self.request, rows="none"
        )
        return DraftModelState(sequences, state.tokens, jnp.where(n_valid > 0, 0, state.count))

    def _choice(
        self,
        logits: Float[Array, "B v"],
        position: Int[Array, "B"],
        before: Drafted | None,
        choose: ChooseDraft,
    ) -> Choice:
        """A draft of the tokens that both models have."""
        logits, tokens, count = up_to(logits, self.vocab_size), None, logits.shape[1] * parts()
        if count != whole_width(self.vocab_size):
            names = jnp.minimum(jnp.arange(count), self.vocab_size - 1)
            tokens = jnp.broadcast_to(names, (logits.shape[0], count))
        return choose(logits, position, tokens, before)

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
        """One call over the waiting tokens and the pending one, which gives the first draft, and one for each other."""
        own, length = state.drafter, state.length
        n_fed = own.count + 1
        output, fed = self.model.verify(
            params["draft"], own.waiting_then(pending[:, None]), n_fed, own.sequences, request=self.request
        )
        assert output.logits is not None
        row = jnp.take_along_axis(output.logits, own.count[:, None, None], axis=1)[:, 0]

        def first(trial: SequenceState) -> tuple[Choice, tuple[()], SequenceState]:
            return self._choice(row, length + 1, None, choose), (), trial

        def step(
            index: Array, before: Drafted, memory: tuple[()], trial: SequenceState
        ) -> tuple[Choice, tuple[()], SequenceState]:
            output, trial = self.model.extend(
                params["draft"],
                before.token[:, None],
                jnp.ones_like(before.token),
                trial,
                request=self.request,
                rows="last",
            )
            assert output.logits is not None
            return self._choice(output.logits[:, 0], length + index + 1, before, choose), memory, trial

        drafts, trial = draft_chain(first, step, commit(fed, n_fed), num_drafts=num_drafts, keep_going=keep_going)
        return Proposal(*drafts, state=DraftModelWindow(own, fed.continued(trial), None))

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: DraftModelWindow) -> DraftModelWindow:
        """Let the accepted drafts wait until the next round feeds them."""
        del features
        return DraftModelWindow(state.before, state.fed, tokens)


def from_file(model: Target) -> FileDrafter:
    """How an ordinary model in a file of its own drafts for another one."""
    return FileDrafter(
        part="target",
        under="draft",
        own_vocabulary=True,
        attach=lambda target: DraftModel(model, target.vocab_size),
    )
