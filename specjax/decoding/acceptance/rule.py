"""The names of the acceptance rules, and what they have to do with drafting."""

from __future__ import annotations

from typing import Any, Literal, get_args

DrawingRule = Literal["coupled", "rejection", "block"]
RULES: tuple[DrawingRule, ...] = get_args(DrawingRule)
"""The rules for rows that draw."""

Rule = DrawingRule | Literal["greedy"]
"""The rules that keep the target's tokens or its distribution."""


def draws_drafts(rule: Any) -> bool:
    """Whether drafts are drawn with noise of their own, so that a verdict needs the probabilities they were drawn
    from.
    """
    return rule in ("rejection", "block")
