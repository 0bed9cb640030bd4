"""How many drafts a round verifies: a limit, a confidence threshold, the token budget, and a pause after failures."""

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


@dataclass(frozen=True)
class DraftConfig:
    """Draft length control. Hashable: pass it as a static argument.

    n_max: most drafts of a round; 0 is plain decoding.
    n_min: a draft shorter than this is dropped.
    p_min: drafting stops before the first token for which the drafter's confidence is below this.
    skip_streak: after this many drafting rounds in a row without an accepted draft, one round does not draft; 0 never
        skips.

    Raises ValueError for a setting out of its range.
    """

    n_max: int = 3
    n_min: int = 0
    p_min: float = 0.0
    skip_streak: int = 0

    def __post_init__(self):
        for name in ("n_max", "n_min", "skip_streak"):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 0):
                raise ValueError(f"{name} is {value!r}; give an integer of at least 0")
        if self.n_min > self.n_max:
            raise ValueError(
                f"n_min is {self.n_min} but n_max is {self.n_max}: every draft would be dropped; lower n_min"
            )
        if not 0 <= self.p_min <= 1:
            raise ValueError(f"p_min is {self.p_min}; give a probability from 0 to 1 (0 never stops)")

    def check_lossless(self, *, drawn: bool) -> None:
        """Raise ValueError if these settings would bias rejection sampling of drafts that are `drawn` at random.

        With p_min, whether a second draft follows depends on the first one. To drop the first for want of a second
        (n_min of 2 or more) is then to look at the token and throw it away, which rejection sampling does not correct.
        Drafts that are a function of the context (greedy or coupled) cannot be biased this way.
        """
        if drawn and self.p_min > 0 and self.n_min > 1:
            raise ValueError(
                f"n_min={self.n_min} with p_min={self.p_min} would bias rejection sampling: a drawn draft would be "
                "dropped because of its value; set n_min to 0 or 1, or p_min to 0, or use the coupled rule"
            )


def effective_drafts(
    confidence: Float[Array, "B K"],
    config: DraftConfig,
    budget: Int[Array, "B"],
    skipping: Bool[Array, "B"],
    made: Int[Array, "B"] | None = None,
) -> Int[Array, "B"]:
    """Drafts to verify, 0 to min(K, n_max), int32.

    confidence: `Choice.confidence` of each draft. budget: tokens that the sequence may still emit; a round emits one
    more than it accepts, so at most budget - 1 are drafted. skipping: `skip_next` of the last round. made: how many of
    the K are drafts, None for all.
    """
    length = min(confidence.shape[1], config.n_max)
    n = jnp.full(budget.shape, length, jnp.int32) if made is None else jnp.minimum(made, length)
    if config.p_min > 0:
        sure = confidence[:, :length] >= config.p_min
        n = jnp.minimum(n, jnp.sum(jnp.cumprod(sure.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32))
    n = jnp.minimum(n, jnp.maximum(budget.astype(jnp.int32) - 1, 0))
    return jnp.where(skipping | (n < config.n_min), 0, n)


def update_streak(
    streak: Int[Array, "B"], n_drafted: Int[Array, "B"], n_accepted: Int[Array, "B"], config: DraftConfig
) -> tuple[Int[Array, "B"], Bool[Array, "B"]]:
    """The count of failed rounds in a row after this round, and whether the next round skips drafting.

    The count starts again from 0 when it triggers a skip, and a round without drafts says nothing about the drafter:
    so a threshold of 1 alternates between trying and skipping, and never skips for ever.
    """
    failed = (n_drafted > 0) & (n_accepted == 0)
    streak = jnp.where(n_accepted > 0, 0, streak + failed)
    skip_next = failed & (streak >= config.skip_streak) if config.skip_streak else jnp.zeros_like(failed)
    return jnp.where(skip_next, 0, streak), skip_next
