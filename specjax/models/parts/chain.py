"""Drafting one token after the other, for drafters that are run once per draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from specjax.models.protocol import Choice, KeepGoing


class Drafts(NamedTuple):
    """The choices of K steps; see `specjax.models.protocol.Proposal`."""

    tokens: Int[Array, "B K"]
    logq: Float[Array, "B K V"] | None
    confidence: Float[Array, "B K"]


def draft_chain(
    first: Choice,
    step: Callable[[Array, Int[Array, "B"], Any], tuple[Choice, Any]],
    carry: Any,
    *,
    num_drafts: int,
    keep_going: KeepGoing,
) -> tuple[Drafts, Any]:
    """Draft until there are `num_drafts` or no row keeps going.

    Args:
        first: the first draft.
        step: (index of the draft, the draft before it, carry) -> (choice, carry).
        carry: what `step` passes on, a pytree.
        num_drafts: K, at least 1.
        keep_going: which rows go on.

    Returns:
        The drafts and the carry after the last step that was run.
    """

    def column_of(value: Array) -> Array:
        return jnp.zeros((num_drafts, *value.shape), value.dtype).at[0].set(value)

    def unfinished(loop: tuple) -> Array:
        index, going = loop[:2]
        return (index < num_drafts) & jnp.any(going)

    def one_step(loop: tuple) -> tuple:
        index, going, choices, carry = loop
        choice, carry = step(index, choices.token[index - 1], carry)
        choices = jax.tree.map(lambda column, value: column.at[index].set(value), choices, choice)
        return index + 1, going & keep_going(choice.confidence, index + 1), choices, carry

    first = first._replace(token=first.token.astype(jnp.int32))
    loop = (jnp.int32(1), keep_going(first.confidence, 1), jax.tree.map(column_of, first), carry)
    _, _, choices, carry = jax.lax.while_loop(unfinished, one_step, loop)
    token, logq, confidence = jax.tree.map(lambda column: jnp.swapaxes(column, 0, 1), choices)
    return Drafts(token, logq, confidence), carry
