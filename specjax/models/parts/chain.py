"""Drafting one token after the other, for drafters that are run once per draft."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.mesh.rows import anywhere
from specjax.models.protocol import Choice, Drafted, KeepGoing


class Drafts(NamedTuple):
    """The choices of K steps; see `specjax.models.protocol.Proposal`."""

    tokens: Int[Array, "B K"]
    logq: Float[Array, "B K V"] | None
    confidence: Float[Array, "B K"]


First = Callable[[Any], tuple[Choice, Any, Any]]
Step = Callable[[Array, Drafted, Any, Any], tuple[Choice, Any, Any]]


def draft_chain(first: First, step: Step, caches: Any, *, num_drafts: int, keep_going: KeepGoing) -> tuple[Drafts, Any]:
    """Draft until there are `num_drafts` or no row keeps going. If none wants even the first draft, nothing is run.

    Args:
        first: caches -> (the first draft, memory, caches). The parameters that it reads must be in device memory: XLA
            fails on host memory that a conditional reads.
        step: (index of the draft, the draft before it, memory, caches) -> (choice, memory, caches).
        caches: what they change, a pytree.
        num_drafts: K, at least 1.
        keep_going: which rows go on.

    Returns:
        The drafts and the caches after the last step that was run.
    """

    def column_of(value: Array) -> Array:
        return jnp.zeros((num_drafts, *value.shape), value.dtype).at[0].set(value)

    def unfinished(loop: tuple) -> Array:
        index, going = loop[:2]
        return (index < num_drafts) & anywhere(going)

    def one_step(loop: tuple) -> tuple:
        index, going, choices, memory, caches = loop
        before = jax.tree.map(lambda column: column[index - 1], choices.drafted)
        choice, memory, caches = step(index, before, memory, caches)
        choices = jax.tree.map(lambda column, value: column.at[index].set(value), choices, choice)
        return index + 1, going & keep_going(choice.confidence, index + 1), choices, memory, caches

    choice, memory, caches, going = _first_choice(first, caches, keep_going)
    loop = (jnp.int32(1), going & keep_going(choice.confidence, 1), jax.tree.map(column_of, choice), memory, caches)
    _, _, choices, _, caches = jax.lax.while_loop(unfinished, one_step, loop)
    chosen = jax.tree.map(lambda column: jnp.swapaxes(column, 0, 1), choices._replace(grammar=None))
    return Drafts(chosen.token, chosen.logq, chosen.confidence), caches


def _first_choice(first: First, caches: Any, keep_going: KeepGoing) -> tuple[Choice, Any, Any, Bool[Array, "B"]]:
    """What `first` returns, and which rows want a draft. If none does, zeros and the caches as they are, at no cost."""

    def run(caches: Any) -> tuple[Choice, Any, Any]:
        choice, memory, caches = first(caches)
        return choice._replace(token=choice.token.astype(jnp.int32)), memory, caches

    def nothing(caches: Any) -> tuple[Choice, Any, Any]:
        return *jax.tree.map(jnp.zeros_like, shapes), caches

    shapes = jax.eval_shape(run, caches)[:2]
    wanted = keep_going(jnp.ones(shapes[0].token.shape, jnp.float32), 0)
    return *jax.lax.cond(anywhere(wanted), run, nothing, caches), wanted
