"""What the tests of `specjax.diverge` share."""

from __future__ import annotations

from typing import Any

import specjax

PROMPT = [100, 101, 102, 32, 40, 97]
TOKENS = 24
DRAFTS = 3


def diverge(model: specjax.Model, *sides: Any, prompt: Any = PROMPT, **changes: Any) -> specjax.DivergenceReport:
    """The report on two runs of a prompt, or of this one."""
    return specjax.diverge(model, prompt, *sides, **({"max_tokens": TOKENS} | changes))
