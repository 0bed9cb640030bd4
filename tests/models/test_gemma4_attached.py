"""Gemma 4 with its assistant as a user loads them: two files, one model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import specjax

FIXTURES = Path(__file__).parents[1] / "fixtures"
GEMMA = FIXTURES / "gemma4"


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("dense", marks=pytest.mark.slow), "edge"])
def test_an_assistant_drafts_and_changes_no_token(name: str) -> None:
    """Past the sliding window, so that rings wrap; alone, and in a ragged batch."""
    model = specjax.load(GEMMA / name / "hf", drafter=GEMMA / name / "assistant")
    assert "Gemma4Assistant" in repr(model)
    prompt = np.random.default_rng(0).integers(5, 100, 60)
    prompts = [prompt, prompt[:3], prompt[7:40]]
    options = specjax.GenerateOptions(max_tokens=40, ignore_eos=True, accept="coupled", draft=0)
    sampled = {"temperature": [0.0, 0.0, 0.8], "seed": 5}
    plain = [generation.tokens for generation in model.generate_batch(prompts, options, **sampled)]
    drafted = model.generate_batch(prompts, options, draft=3, **sampled)
    assert [generation.tokens for generation in drafted] == plain
    assert model.generate(prompt, options, draft=3).tokens == plain[0]


def test_an_assistant_that_does_not_fit_says_in_what() -> None:
    with pytest.raises(specjax.SpecjaxError, match=r"cannot draft for .* does not fit the target: "):
        specjax.load(GEMMA / "edge" / "hf", drafter=GEMMA / "dense" / "assistant")
    with pytest.raises(specjax.SpecjaxError, match="not for a Qwen35Target"):
        specjax.load(FIXTURES / "qwen3_5" / "dense" / "hf", drafter=GEMMA / "dense" / "assistant")


def test_an_assistant_alone_is_refused() -> None:
    with pytest.raises(specjax.SpecjaxError, match="only drafts: load the model it was made for"):
        specjax.load(GEMMA / "dense" / "assistant")
