"""How many drafts a round verifies: a limit, a confidence threshold, the token budget, and a pause after failures."""

from __future__ import annotations

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from specjax.decoding.settings import RowSettings


def is_sure(confidence: Float[Array, "B *K"], settings: RowSettings) -> Bool[Array, "B *K"]:
    """Which drafts may stand in a round by their confidence; a threshold of 0 asks nothing."""
    p_min = settings.along(confidence).p_min
    return (confidence >= p_min) | (p_min <= 0)


def wanted_drafts(settings: RowSettings, budget: Int[Array, "B"], skipping: Bool[Array, "B"]) -> Int[Array, "B"]:
    """The most drafts that each row can use in a round.

    budget: tokens that the sequence may still emit; a round emits one more than it accepts, so at most budget - 1 are
    drafted. skipping: `skip_next` of the last round.
    """
    room = jnp.maximum(budget.astype(jnp.int32) - 1, 0)
    return jnp.where(skipping, 0, jnp.minimum(settings.n_drafts, room))


def effective_drafts(
    confidence: Float[Array, "B K"],
    settings: RowSettings,
    wanted: Int[Array, "B"],
    made: Int[Array, "B"] | None = None,
) -> Int[Array, "B"]:
    """Drafts to verify, 0 to K, int32.

    confidence: `Choice.confidence` of each draft. wanted: see `wanted_drafts`. made: how many of the K are drafts, None
    for all.
    """
    sure = is_sure(confidence, settings)
    n = jnp.sum(jnp.cumprod(sure.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
    n = jnp.minimum(n if made is None else jnp.minimum(n, made), wanted)
    return jnp.where(n < settings.n_min, 0, n)


def update_streak(
    streak: Int[Array, "B"], n_drafted: Int[Array, "B"], n_accepted: Int[Array, "B"], settings: RowSettings
) -> tuple[Int[Array, "B"], Bool[Array, "B"]]:
    """The count of failed rounds in a row after this round, and whether the next round skips drafting.

    The count starts again from 0 when it triggers a skip, and a round without drafts says nothing about the drafter:
    so a threshold of 1 alternates between trying and skipping, and never skips for ever.
    """
    failed = (n_drafted > 0) & (n_accepted == 0)
    streak = jnp.where(n_accepted > 0, 0, streak + failed)
    skip_next = failed & (settings.skip_streak > 0) & (streak >= settings.skip_streak)
    return jnp.where(skip_next, 0, streak), skip_next
