"""The names of the acceptance rules, and what they have to do with drafting."""

from __future__ import annotations

from typing import Any, Literal

from specjax.decoding.settings import RULES, DrawingRule

__all__ = ["RULES", "DrawingRule", "Rule", "draws_drafts"]

Rule = DrawingRule | Literal["greedy", "each"]
"""The rules that keep the target's tokens or its distribution. With "each", every row has a rule of its own."""


def draws_drafts(rule: Any) -> bool:
    """Whether drafts are drawn with noise of their own, so that a verdict needs the probabilities they were drawn
    from.
    """
    return rule in ("rejection", "block", "each")
