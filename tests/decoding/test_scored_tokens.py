"""A drafter that scores only some tokens draws as one that scores all of them and excludes the others."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from specjax.decoding.acceptance import RULES, Rule, draws_drafts, propose_token
from specjax.decoding.settings import RowSettings, SamplerConfig, Settings

VOCAB, SCORED, BATCH = 64, 12, 24
WARM = SamplerConfig(temperature=0.8, top_k=7, top_p=0.9, min_p=0.02)
SAMPLERS = (SamplerConfig(), WARM, SamplerConfig(temperature=1.3))
propose = jax.jit(propose_token, static_argnames=("rule", "vocab_size"))


@pytest.mark.parametrize("rule", RULES)
def test_some_tokens_are_drawn_as_if_the_others_were_excluded(rule: Rule) -> None:
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(VOCAB)[:SCORED] for _ in range(BATCH)]).astype(np.int32)
    logits = rng.normal(size=(BATCH, SCORED)).astype(np.float32)
    everything = np.full((BATCH, VOCAB), -np.inf, np.float32)
    np.put_along_axis(everything, tokens, logits, axis=1)
    settings = {
        "rule": rule,
        "settings": RowSettings.of([Settings(SAMPLERS[row % 3], seed=3) for row in range(BATCH)]),
        "sequence": np.arange(BATCH),
        "position": np.arange(BATCH) + 5,
        "ahead": np.arange(BATCH) // 3 % 3,
    }
    want = propose(everything, **settings)
    got = propose(logits, tokens, vocab_size=VOCAB, **settings)
    np.testing.assert_array_equal(got.token, want.token)
    np.testing.assert_allclose(got.confidence, want.confidence, rtol=1e-6)
    assert (got.logq is None) == (want.logq is None) == (not draws_drafts(rule))
    if want.logq is not None:
        np.testing.assert_allclose(np.exp(got.logq), np.exp(want.logq), rtol=1e-5, atol=1e-7)
