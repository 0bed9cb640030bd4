"""The warped distribution against a reference that loops over tokens."""

import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wants import GREEDY, alike

from specjax.decoding.sampling import FIRST_LOOK, sample_tokens, top2_margin, warp
from specjax.decoding.settings import SamplerConfig


def reference(logits, config, slack=1e-5):
    """One row. Returns probabilities, or None where a threshold is too close to call in float32."""
    x = np.asarray(logits, np.float64) / config.temperature
    order = sorted((token for token in range(len(x)) if x[token] > -np.inf), key=lambda token: (-x[token], token))
    if config.top_k:
        order = order[: config.top_k]
    weight = {token: math.exp(x[token] - x[order[0]]) for token in order}
    if config.top_p < 1:
        total, mass, kept = sum(weight.values()), 0.0, []
        for token in order:
            kept.append(token)
            mass += weight[token] / total
            if abs(mass - config.top_p) < slack:
                return None
            if mass > config.top_p:
                break
        order = kept
    if any(abs(weight[token] - config.min_p) < slack for token in order):
        return None
    order = [token for token in order if weight[token] > config.min_p or config.min_p == 0]
    p = np.zeros(len(x))
    for token in order:
        p[token] = weight[token]
    return p / p.sum()


CONFIGS = [
    SamplerConfig(1.0),
    SamplerConfig(0.7, top_k=3),
    SamplerConfig(0.5, top_p=0.8),
    SamplerConfig(2.0, min_p=0.11),
    SamplerConfig(1.5, top_k=5, top_p=0.6),
    SamplerConfig(0.8, top_k=6, top_p=0.93, min_p=0.07),
    SamplerConfig(1.0, top_k=50, top_p=0.99),
]
# Multiples of 1/8: many ties, and no near-ties that only float64 can tell apart.
eighths = st.integers(-40, 40).map(lambda i: i / 8)
rows = st.lists(st.one_of(eighths, st.just(-math.inf)), min_size=11, max_size=11).filter(lambda r: max(r) > -math.inf)


sampled = jax.jit(sample_tokens)


@jax.jit
def by_settings(rows, settings):
    return warp(rows, settings)


def jitted(logits, config):
    """The warped distribution of one row, or of several that want the same."""
    rows = jnp.asarray(logits)
    rows = rows if rows.ndim > 1 else rows[None]
    return by_settings(rows, alike(len(rows), config)).reshape(logits.shape)


@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
@hypothesis.given(rows, st.sampled_from(CONFIGS))
def test_warp_equals_reference(row, config):
    want = reference(row, config)
    hypothesis.assume(want is not None)
    got = np.exp(np.asarray(jitted(np.asarray(row, np.float32), config=config)))
    np.testing.assert_array_equal(got == 0, want == 0)
    np.testing.assert_allclose(got, want, rtol=2e-5)


@pytest.mark.parametrize("spread", [0.1, 8.0], ids=["flat", "peaked"])
def test_nucleus_of_a_large_vocabulary_equals_reference(spread):
    """Flat logits need more of the vocabulary than is looked at first, peaked ones do not."""
    logits = np.float32(spread) * np.random.default_rng(0).standard_normal((2, 3001), np.float32)
    config = SamplerConfig(1.0, top_p=0.9)
    got = np.exp(np.asarray(jitted(logits, config=config)))
    for row, p in zip(logits, got, strict=True):
        want = reference(row, config, slack=0)
        assert abs(int((p > 0).sum()) - int((want > 0).sum())) <= 1
        np.testing.assert_allclose(p, want, atol=5e-4 if spread < 1 else 1e-5)
    alone = jitted(logits[:1], config=config)
    np.testing.assert_array_equal(alone[0] == -np.inf, got[0] == 0)


def test_a_flat_row_in_the_batch_leaves_the_others_alone():
    logits = np.random.default_rng(0).standard_normal((2, 3001), np.float32) * np.array([[0.01], [8.0]], np.float32)
    config = SamplerConfig(1.0, top_p=0.9)
    together, alone = jitted(logits, config=config)[1], jitted(logits[1:], config=config)[0]
    np.testing.assert_array_equal(together > -np.inf, alone > -np.inf)


def probabilities(weights, config):
    """The warped distribution of tokens that had these weights before."""
    with np.errstate(divide="ignore"):
        logits = np.log(np.pad(np.asarray(weights, np.float32), (0, 11 - len(weights))))
    return np.exp(jitted(logits, config))[: len(weights)]


def test_ties_keep_the_lower_token_ids():
    tied = [1, 3, 3, 3, 3]
    np.testing.assert_array_equal(probabilities(tied, SamplerConfig(1.0, top_k=2)) > 0, [0, 1, 1, 0, 0])
    np.testing.assert_array_equal(probabilities(tied, SamplerConfig(1.0, top_p=0.6)) > 0, [0, 1, 1, 1, 0])


def test_top_p_keeps_the_token_that_crosses_and_never_none():
    weights = [0.5, 0.3, 0.2]
    np.testing.assert_allclose(probabilities(weights, SamplerConfig(1.0, top_p=0.6)), [0.625, 0.375, 0], rtol=1e-6)
    np.testing.assert_array_equal(probabilities(weights, SamplerConfig(1.0, top_p=1e-9)), [1, 0, 0])
    np.testing.assert_array_equal(probabilities(weights, SamplerConfig(1.0, min_p=1.0)), [1, 0, 0])


def test_top_k_precedes_top_p():
    """0.4 of the whole is 0.57 of the two most probable."""
    weights = [0.4, 0.3, 0.2, 0.1]
    np.testing.assert_array_equal(probabilities(weights, SamplerConfig(1.0, top_k=2, top_p=0.5)) > 0, [1, 0, 0, 0])
    np.testing.assert_array_equal(probabilities(weights, SamplerConfig(1.0, top_p=0.5)) > 0, [1, 1, 0, 0])


def test_temperature_precedes_top_p_and_min_p():
    weights = [0.6, 0.3, 0.1]
    np.testing.assert_array_equal(probabilities(weights, SamplerConfig(0.5, top_p=0.7)) > 0, [1, 0, 0])
    np.testing.assert_array_equal(probabilities(weights, SamplerConfig(0.5, min_p=0.4)) > 0, [1, 0, 0])


@pytest.mark.parametrize("config", [CONFIGS[-2], SamplerConfig(1e-6), SamplerConfig()], ids=str)
def test_the_only_finite_logit_has_all_of_the_probability(config):
    logits = np.full((2, 7), -np.inf, np.float32)
    logits[0, 4], logits[1, 0] = -90, 1e30
    np.testing.assert_array_equal(np.exp(jitted(logits, config)), np.eye(7)[[4, 0]])
    draws = sampled(logits, settings=alike(2, config), sequence=np.arange(2), position=np.arange(2))
    np.testing.assert_array_equal(draws, [4, 0])


def test_half_precision_logits_are_warped_in_float32():
    logits = np.random.default_rng(0).standard_normal((3, 37), np.float32).astype(jnp.bfloat16)
    for config in GREEDY, SamplerConfig(0.8, top_k=6, top_p=0.93, min_p=0.07):
        got = jitted(logits, config=config)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, jitted(logits.astype(np.float32), config=config), rtol=1e-6)


def test_greedy_is_argmax_whatever_the_filters():
    logits = np.array([[0, 2, 2, -1], [5, 1, 1, 1]], np.float32)
    config = SamplerConfig(0.0, top_k=2, top_p=0.1, min_p=0.9)
    assert config.greedy
    draws = sampled(logits, settings=alike(2, config), sequence=np.arange(2), position=np.arange(2))
    np.testing.assert_array_equal(draws, [1, 0])
    np.testing.assert_array_equal(np.exp(jitted(logits, config)), [[0, 1, 0, 0], [1, 0, 0, 0]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.5}, "temperature is -0.5"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 1e-9}, "give 0 for greedy"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"min_p": math.nan}, "min_p is nan"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        SamplerConfig(**settings)


def test_configs_are_hashable_values():
    assert hash(SamplerConfig(0.5, top_k=3)) == hash(SamplerConfig(0.5, top_k=3))
    assert SamplerConfig(0.5) != SamplerConfig(0.6)


def test_margin_is_best_minus_second_best():
    logits = jnp.array([[[1.0, 4.0, 3.5], [2.0, 2.0, -1.0]]])
    np.testing.assert_array_equal(top2_margin(logits), [[0.5, 0.0]])
    assert top2_margin(logits.astype(jnp.bfloat16)).dtype == jnp.float32


def test_the_first_token_of_the_vocabulary_keeps_its_probability_in_a_padded_list():
    """Where few of many tokens are looked at, the list is padded; what pads it has no token of its own."""
    logits = np.zeros((2, 3 * FIRST_LOOK), np.float32)
    logits[:, [0, 5]] = [[4, 3], [3, 4]]
    for config in (SamplerConfig(1.0, top_k=2), SamplerConfig(1.0, top_p=0.05), SamplerConfig(1.0, min_p=0.2)):
        p = np.exp(jax.jit(warp)(logits, alike(2, config)))
        np.testing.assert_allclose(p.sum(axis=-1), 1, rtol=1e-6)
        assert p[0].argmax() == 0
