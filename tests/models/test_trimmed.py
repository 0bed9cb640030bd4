"""A trimmed drafter drafts as the whole one would if all other tokens were excluded."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scripted import feed, ragged_prompts
from tiny_models import DENSE, make_config, make_params

import specjax
from checkpoints.mapping.table import put_on_default_device
from specjax.decoding.acceptance import propose_token
from specjax.decoding.decoder import Decoder
from specjax.decoding.settings import RowSettings, SamplerConfig, Settings
from specjax.models.drafters.draft_model import DraftModel
from specjax.models.drafters.trimmed import trimmed
from specjax.models.protocol import Choice, Drafter, Params, Proposal, Target
from specjax.models.qwen3_5 import Qwen35Target
from specjax.runtime.loading import bundled_model
from specjax.state import SequenceState

FIXTURES = Path(__file__).parents[1] / "fixtures"
DRAFTS = 2
LENGTHS = (3, 9, 1, 14, 5, 30)
SAMPLERS = [SamplerConfig(), SamplerConfig(temperature=0.8, top_k=20), SamplerConfig(temperature=1.3)] * 2
CASES = {
    "packed-head-that-shares": (bundled_model(), None, ["target.embed.weight"]),
    "head-of-its-own": ("glm4_moe/large/hf", None, ["mtp.lm_head.weight"]),
    "chain-that-shares": ("step3_5/plain/hf", None, ["target.lm_head.weight"]),
    "chain-of-its-own": ("step3_5/flash/hf", None, [f"mtp.heads_{i}.lm_head.weight" for i in range(3)]),
    "eagle3": ("drafter_target/hf", "eagle3/speculators_qwen3", ["eagle3.lm_head.weight"]),
    "dspark": (
        "drafter_target/hf",
        "dspark/speculators_gated",
        ["target.lm_head.weight", "dflash.markov.out.weight"],
    ),
    "assistant": ("gemma4/dense/hf", "gemma4/dense/assistant", ["mtp.embed.weight"]),
}


def choose(
    logits: jax.Array, position: jax.Array, tokens: Any = None, before: Any = None, *, vocab_size: int, only: Any = None
) -> Choice:
    """As rejection sampling chooses, in greedy and in drawing rows; with `only` [V] by the definition of a trimmed
    head: from the logits of all tokens, without those that are not among these.
    """
    if only is not None:
        names = jnp.broadcast_to(jnp.arange(logits.shape[1]), logits.shape) if tokens is None else tokens
        every = jnp.full((len(logits), vocab_size), -jnp.inf).at[jnp.arange(len(logits))[:, None], names].set(logits)
        logits, tokens = jnp.where(only, every, -jnp.inf), None
    return propose_token(
        logits,
        tokens,
        vocab_size=vocab_size,
        rule="rejection",
        settings=RowSettings.of([Settings(sampler, seed=4) for sampler in SAMPLERS]),
        sequence=jnp.arange(len(LENGTHS)),
        position=position,
    )


@partial(jax.jit, static_argnames=("drafter", "vocab_size"))
def propose(drafter: Drafter, vocab_size: int, params: Params, state: SequenceState, only: Any = None) -> Proposal:
    proposal = drafter.propose(
        params,
        jnp.arange(len(LENGTHS)) + 7,
        state,
        num_drafts=DRAFTS,
        choose=partial(choose, vocab_size=vocab_size, only=only),
        keep_going=lambda confidence, made: confidence >= 0,
    )
    return proposal._replace(state=None)


def assert_drafts_of(whole: Drafter, target: Target, params: Params, tokens: np.ndarray) -> None:
    """The trimmed drafter drafts as by definition, and with the probabilities that it has then."""
    drafter, added = trimmed(whole, params, tokens, put_on_default_device)
    params, size = params | added, target.vocab_size
    state, _ = feed(Decoder(target, drafter, max_drafts=DRAFTS), params, ragged_prompts(target.config, LENGTHS))  # type: ignore[attr-defined]
    among = np.isin(np.arange(size), tokens)
    got = propose(drafter, size, params, state)
    want, untrimmed = (propose(whole, size, params, state, only) for only in (among, among | True))
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.confidence, want.confidence, rtol=1e-4)
    assert got.logq is not None
    assert want.logq is not None
    np.testing.assert_allclose(np.exp(got.logq), np.exp(want.logq), atol=1e-5)
    assert among[got.tokens].all()
    drafts, others = np.asarray(got.tokens), np.asarray(untrimmed.tokens)
    known = np.cumprod(among[others], axis=1) > 0
    known &= np.array([sampler.greedy for sampler in SAMPLERS])[:, None]
    np.testing.assert_array_equal(drafts[known], others[known])
    assert (drafts != others).any(), "nothing was left out that would have been drafted"


SLOW = ("packed-head-that-shares", "head-of-its-own", "chain-that-shares", "chain-of-its-own", "eagle3", "assistant")
"""What differs little from other cases."""


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.slow] * (case in SLOW)) for case in CASES])
def test_a_trimmed_drafter_drafts_as_if_the_other_tokens_were_excluded(case: str) -> None:
    path, drafter, paths = CASES[case]
    model = specjax.load(FIXTURES / path, drafter=None if drafter is None else FIXTURES / drafter)
    assert model.drafter is not None
    assert list(model.drafter.head_paths()) == paths
    size = model.target.vocab_size
    tokens = np.sort(np.random.default_rng(0).permutation(size)[: size // 2]).astype(np.int32)
    assert_drafts_of(model.drafter, model.target, model.params, tokens)


@pytest.mark.slow
def test_what_a_smaller_draft_model_does_not_know_is_left_out() -> None:
    """The target has 96 tokens, of which the small model knows the first 64."""
    config = make_config(vocab_size=96)
    params = make_params(config) | {"draft": {"target": make_params(DENSE)["target"]}}
    tokens = np.arange(1, 96, 2, dtype=np.int32)
    drafter, added = trimmed(DraftModel(Qwen35Target(DENSE), 96), params, tokens, put_on_default_device)
    np.testing.assert_array_equal(added["trimmed"]["tokens"], tokens[tokens < 64])
    assert_drafts_of(drafter.drafter, Qwen35Target(config), params, tokens)
