"""A trimmed drafter scores some of the target's tokens, and drafts as before.

Where the vocabulary is large, much of a draft's time goes into the products with the rows of the output head, and most
of these tokens are hardly ever drafted. The rows of those that are wanted are gathered once, in the form that they
have. While the drafter drafts, products with the head are products with these rows. All other tokens have probability 0
as drafts, which every acceptance rule takes into account. The target's own products are whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from checkpoints.mapping.reading import Given
from checkpoints.mapping.table import PLAIN, Outline, Put
from checkpoints.mapping.tree import flatten, unflatten
from pallas_kernels.matmul import ROWS_THAT_JOIN, as_weight, joined, submatrix
from specjax.layers.some_rows import SomeRows
from specjax.mesh.columns import own_columns, share
from specjax.mesh.plan import size_of
from specjax.mesh.shards import MODEL, REPLICATED, exchanged, lying, mesh_of, on_shards, part_index, parts
from specjax.models.parts.apply import in_device_memory
from specjax.models.parts.drafter import RunningDrafter
from specjax.models.protocol import Choice, ChooseDraft, Drafted, Drafter, KeepGoing, Params, Proposal
from specjax.state import SequenceState

TRIMMED = "trimmed"
"""The branch of the parameters: "tokens" [M], and "rows" with the rows of heads by the paths of these."""


@dataclass(frozen=True)
class TrimmedDrafter(RunningDrafter):
    """Another drafter, whose head scores the tokens of `params["trimmed"]["tokens"]`; made by `trimmed`.

    Where a model is split, each part has as many rows of the tokens, whosever rows of the whole head they are.
    """

    def shard(self, parts: int) -> TrimmedDrafter:
        """The other drafter is split, and knows all tokens."""
        return self if parts == 1 else TrimmedDrafter(self.drafter.shard(parts))

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
            tokens: Int[Array, "B Ma"] | None = None,
            before: Drafted | None = None,
        ) -> Choice:
            if tokens is None:
                places = jnp.arange(logits.shape[1] * parts())
                tokens = jnp.broadcast_to(places, (logits.shape[0], places.size))
            logits = jnp.where(own_columns(tokens, scored.size) < scored.size, logits, -jnp.inf)
            return choose(logits, position, scored[jnp.minimum(tokens, scored.size - 1)], before)

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
        put: makes a parameter where it shall lie; rows lie where their head lies. Those of a split head are split.

    Raises:
        ValueError: the drafter's head cannot be trimmed; the message says why.
    """
    heads, tokens = _heads(drafter, params, tokens)
    rows = {path: put(path, Given(_gathered(head, jnp.asarray(tokens))), PLAIN) for path, head in heads.items()}
    scored = put(next(iter(heads)), Given(tokens), PLAIN)
    return TrimmedDrafter(drafter), {TRIMMED: {"tokens": scored, "rows": unflatten(rows)}}


def outline_of_trimmed(
    drafter: Drafter, params: Params, tokens: Int[np.ndarray, "M"], put: Outline
) -> tuple[TrimmedDrafter, Params]:
    """`trimmed` where parameters are shapes."""
    heads, tokens = _heads(drafter, params, tokens)
    scored = jax.ShapeDtypeStruct(tokens.shape, jnp.int32)
    rows = {path: jax.eval_shape(_gathered, head, scored) for path, head in heads.items()}
    return TrimmedDrafter(drafter), {TRIMMED: {"tokens": put(TRIMMED, scored, PLAIN), "rows": unflatten(rows)}}


def _heads(drafter: Drafter, params: Params, tokens: Int[np.ndarray, "M"]) -> tuple[dict[str, Any], np.ndarray]:
    """The heads by their paths, and those of the tokens that all of them have."""
    flat = flatten(params)
    heads = {path: flat[path] for path in trimmed_paths(drafter)}
    return heads, tokens[tokens < min(size_of(head) // head.shape[-1] for head in heads.values())]


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
    """The rows of these tokens of a head, as many on each device that has a part of it."""
    split = mesh_of(head) is not None and MODEL in jax.typeof(jax.tree.leaves(head)[0]).sharding.spec
    return on_shards(partial(_rows, split), head, tokens, out=lambda *_: lying(MODEL) if split else REPLICATED)


def _rows(split: bool, count: int, head: Any, tokens: Int[Array, "M"]) -> Any:
    """`_gathered` on one of `count` parts. The parts send each other the rows that they have for them."""
    head = jax.tree.map(in_device_memory, head)
    if not split:
        return submatrix(head, tokens)
    own = share(tokens.size)
    wide = -(-own // ROWS_THAT_JOIN) * ROWS_THAT_JOIN
    of_parts = jnp.pad(tokens, (0, own * count - tokens.size), mode="edge").reshape(count, own)
    holder, row = jnp.divmod(jnp.pad(of_parts, ((0, 0), (0, wide - own)), mode="edge"), as_weight(head).shape[0])
    sent = [submatrix(head, jnp.where(holder[part] == part_index(), row[part], 0)) for part in range(count)]
    received = exchanged(jax.tree.map(lambda *parts: jnp.stack(parts), *sent))
    from_all = [jax.tree.map(lambda x, part=part: x[part], received) for part in range(count)]
    return submatrix(joined(*from_all), holder[part_index(), :own] * wide + jnp.arange(own))
