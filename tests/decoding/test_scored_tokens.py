"""A drafter that scores only some tokens draws as one that scores all of them and excludes the others."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from wants import alike

from specjax.decoding.acceptance import RULES, Rule, draws_drafts, propose_token
from specjax.decoding.settings import SamplerConfig

VOCAB, SCORED, BATCH = 64, 12, 8
WARM = SamplerConfig(temperature=0.8, top_k=7, top_p=0.9, min_p=0.02)


@pytest.mark.parametrize("sampler", [SamplerConfig(), WARM, SamplerConfig(temperature=1.3)], ids=str)
@pytest.mark.parametrize("rule", RULES)
def test_some_tokens_are_drawn_as_if_the_others_were_excluded(rule: Rule, sampler: SamplerConfig) -> None:
    rng = np.random.default_rng(0)
    tokens = np.stack([rng.permutation(VOCAB)[:SCORED] for _ in range(BATCH)]).astype(np.int32)
    logits = rng.normal(size=(BATCH, SCORED)).astype(np.float32)
    everything = np.full((BATCH, VOCAB), -np.inf, np.float32)
    np.put_along_axis(everything, tokens, logits, axis=1)
    settings = {
        "rule": rule,
        "settings": alike(BATCH, sampler, seed=3),
        "sequence": jnp.arange(BATCH),
        "position": jnp.arange(BATCH) + 5,
        "ahead": jnp.arange(BATCH) % 3,
    }
    want = propose_token(jnp.asarray(everything), **settings)
    got = propose_token(jnp.asarray(logits), jnp.asarray(tokens), vocab_size=VOCAB, **settings)
    np.testing.assert_array_equal(got.token, want.token)
    np.testing.assert_allclose(got.confidence, want.confidence, rtol=1e-6)
    assert (got.logq is None) == (want.logq is None) == (not draws_drafts(rule))
    if want.logq is not None:
        np.testing.assert_allclose(np.exp(got.logq), np.exp(want.logq), rtol=1e-5, atol=1e-7)
