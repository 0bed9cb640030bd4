"""A trimmed drafter scores some of the target's tokens, and drafts as before.

Where the vocabulary is large, much of a draft's time goes into the products with the rows of the output head, and most
of these tokens are hardly ever drafted. The rows of those that are wanted are gathered once, in the form that they
have. While the drafter drafts, products with the head are products with these rows. All other tokens have probability 0
as drafts, which every acceptance rule takes into account. The target's own products are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from checkpoints.mapping.reading import Given
from checkpoints.mapping.table import PLAIN, Put
from checkpoints.mapping.tree import flatten, unflatten
from pallas_kernels.matmul import submatrix
from specjax.layers.some_rows import SomeRows
from specjax.models.parts.apply import in_device_memory
from specjax.models.parts.drafter import BaseDrafter
from specjax.models.protocol import (
    Choice,
    ChooseDraft,
    Drafted,
    Drafter,
    FeatureRequest,
    Features,
    KeepGoing,
    Params,
    Proposal,
)
from specjax.state import KVTypes, Part, SequenceState, Window

TRIMMED = "trimmed"
"""The branch of the parameters: "tokens" [M], and "rows" with the rows of heads by the paths of these."""


@dataclass(frozen=True)
class TrimmedDrafter(BaseDrafter):
    """Another drafter, whose head scores the tokens of `params["trimmed"]["tokens"]`; made by `trimmed`.

    Attributes:
        drafter: whose state it keeps, and whose layers it runs.
    """

    drafter: Drafter

    @property
    def keeper(self) -> Drafter:
        return self.drafter.keeper

    @property
    def request(self) -> FeatureRequest:
        return self.drafter.request

    @property
    def max_drafts(self) -> int | None:
        return self.drafter.max_drafts

    def init_state(self, batch: int, capacity: int, *, rows: int, chunk: int, kv_types: KVTypes) -> Part | None:
        return self.drafter.init_state(batch, capacity, rows=rows, chunk=chunk, kv_types=kv_types)

    def extend(
        self,
        params: Params,
        tokens: Int[Array, "B T"],
        features: Features,
        n_valid: Int[Array, "B"],
        state: Any,
        length: Int[Array, "B"],
    ) -> Any:
        return self.drafter.extend(params, tokens, features, n_valid, state, length)

    def narrowed(self, params: Params, state: Any, length: Int[Array, "B"], rows: int) -> Any:
        return self.drafter.narrowed(params, state, length, rows)

    def observe(self, tokens: Int[Array, "B T"], features: Features, state: Any) -> Window | None:
        return self.drafter.observe(tokens, features, state)

    def hidden_norm(self, state: Any) -> Float[Array, "B"] | None:
        return self.drafter.hidden_norm(state)

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
        """What the drafter proposes if its head has only the rows of its tokens."""
        scored = in_device_memory(params[TRIMMED]["tokens"])

        def choose_scored(
            logits: Float[Array, "B M"],
            position: Int[Array, "B"],
            tokens: Int[Array, "B M"] | None = None,
            before: Drafted | None = None,
        ) -> Choice:
            names = jnp.broadcast_to(scored, logits.shape) if tokens is None else scored[tokens]
            return choose(logits, position, names, before)

        return self.drafter.propose(
            _with_fewer_rows(params),
            pending,
            state,
            num_drafts=num_drafts,
            choose=choose_scored,
            keep_going=keep_going,
        )


def _with_fewer_rows(params: Params) -> Params:
    flat, rows = flatten(params), flatten(params[TRIMMED]["rows"])
    return unflatten(flat | {path: SomeRows(flat[path], own) for path, own in rows.items()})


def trimmed(drafter: Drafter, params: Params, tokens: Int[np.ndarray, "M"], put: Put) -> tuple[TrimmedDrafter, Params]:
    """The drafter that scores only these tokens, and the parameters that it adds.

    Args:
        drafter: a drafter with an output head.
        params: all parameters.
        tokens: of the target's, in ascending order, so that of equal logits the first one wins, as among all tokens.
            What the drafter itself does not have, such as a draft model with a smaller vocabulary, is left out.
        put: makes a parameter where it shall lie; rows lie where their head lies.

    Raises:
        ValueError: the drafter's head cannot be trimmed; the message says why.
    """
    flat, paths = flatten(params), trimmed_paths(drafter)
    tokens = tokens[tokens < min(flat[path].shape[0] for path in paths)]
    rows = {path: put(path, Given(_gathered(flat[path], jnp.asarray(tokens))), PLAIN) for path in paths}
    return TrimmedDrafter(drafter), {TRIMMED: {"tokens": put(paths[0], Given(tokens), PLAIN), "rows": unflatten(rows)}}


def trimmed_paths(drafter: Drafter) -> tuple[str, ...]:
    """Paths of the parameters whose rows are gathered.

    Raises:
        ValueError: the drafter's head cannot be trimmed; the message says why.
    """
    if not (paths := drafter.head_paths()):
        raise ValueError(f"{type(drafter).__name__} has no output head")
    return paths


@jax.jit
def _gathered(head: Any, tokens: Int[Array, "M"]) -> Any:
    return submatrix(jax.tree.map(in_device_memory, head), tokens)
