"""In exact mode logits do not depend on the mesh, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from test_tokens import PROMPTS

import specjax

pytestmark = pytest.mark.mesh

Load = Callable[..., specjax.Model]
NAMES = ("exact dense", "exact hybrid", "exact moe", "exact gemma4", "exact gemma4 moe")
FIRST = [("exact moe", "Q4_K", "1x4")]
LATER = [
    (name, weights, mesh)
    for name in NAMES
    for weights in ("F32", "Q8_0", "Q4_K")
    for mesh in ("1x2", "1x4", "2x2")
    if (name, weights, mesh) not in FIRST
]


@pytest.mark.parametrize(
    ("name", "weights", "mesh"), [*FIRST, *(pytest.param(*each, marks=pytest.mark.slow) for each in LATER)]
)
def test_logits_are_those_of_one_device(load: Load, name: str, weights: str, mesh: str) -> None:
    """Of a prompt. Where weights are floats they are those of the usual mode, too."""
    one, split = (load(name, weights, each, exact=True) for each in (None, mesh))
    wanted = one.next_logits(PROMPTS[2])
    np.testing.assert_array_equal(split.next_logits(PROMPTS[2]), wanted)
    if weights == "F32":
        np.testing.assert_array_equal(load(name, weights).next_logits(PROMPTS[2]), wanted)


def test_tokens_and_drafts_are_those_of_one_device(load: Load) -> None:
    one, split = (load("exact hybrid", "Q8_0", mesh, exact=True) for mesh in (None, "1x4"))
    wanted, got = (each.generate(PROMPTS[0], max_tokens=16, draft=3, logprobs=1) for each in (one, split))
    assert got.tokens == wanted.tokens
    assert got.stats.accepted == wanted.stats.accepted


def test_hidden_columns_must_divide(load: Load) -> None:
    with pytest.raises(specjax.SpecjaxError, match=r"mlp_width \(90\)"):
        load("odd", mesh="1x4", exact=True)
