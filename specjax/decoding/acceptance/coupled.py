"""Coupled: a draft is accepted if it is the token that plain sampling gives at its position."""

from __future__ import annotations

from jaxtyping import Array, Int

from specjax.decoding.acceptance.drawing import Decision, Drafted
from specjax.decoding.acceptance.verdict import first_difference
from specjax.decoding.sampling import Shortlist, sample_shortlist


def choices(candidates: Shortlist, given: Drafted) -> Int[Array, "B R"]:
    """The tokens of plain sampling at the places of a round."""
    return sample_shortlist(candidates, seed=given.settings.seed, sequence=given.sequence, position=given.positions)


def decide(candidates: Shortlist, given: Drafted) -> Decision:
    """Accept drafts as long as each is the token that plain sampling gives at its position."""
    return first_difference(choices(candidates, given), given.tokens, given.n_drafted)
