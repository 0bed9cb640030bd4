"""Coupled: a draft is accepted if it is the token that plain sampling gives at its position."""

from __future__ import annotations

from specjax.decoding.acceptance.drawing import Decision, Drafted
from specjax.decoding.acceptance.verdict import first_difference
from specjax.decoding.random import Key
from specjax.decoding.sampling import Shortlist, sample_shortlist


def decide(candidates: Shortlist, given: Drafted, key: Key) -> Decision:
    """Accept drafts as long as each is the token that plain sampling gives at its position."""
    return first_difference(sample_shortlist(candidates, key), given.tokens, given.n_drafted)
