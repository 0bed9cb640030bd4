"""Draws are a function of (seed, sequence, position, purpose) and have the distributions they claim."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats
from wants import alike

from specjax.decoding import random
from specjax.decoding.random import Purpose
from specjax.decoding.sampling import sample, sample_tokens, warp
from specjax.decoding.settings import SamplerConfig

warped = jax.jit(warp)
gumbel = jax.jit(random.gumbel, static_argnames="vocab_size")
gumbel_at = jax.jit(lambda *place, purpose, tokens: random.gumbel_at(random.key_at(*place), purpose, tokens))
uniform = jax.jit(lambda *place, purpose: random.uniform(random.key_at(*place), purpose))

SEED = np.uint32(7)
SEQUENCE = np.array([3, 0, 11])
POSITION = np.array([[5, 6, 7, 8], [0, 1, 2, 3], [5, 6, 7, 8]])


@jax.jit
def draw_rows(logits, sequence, position, wants):
    return sample_tokens(logits, settings=wants, sequence=sequence, position=position)


def draw(logits, sequence, position, *, config):
    return draw_rows(logits, sequence, position, alike(len(logits), config, seed=int(SEED)))


def test_draws_do_not_depend_on_batch_composition():
    whole = gumbel(SEED, SEQUENCE, POSITION, Purpose.TOKEN, 37)
    order = np.array([2, 0, 1])
    np.testing.assert_array_equal(gumbel(SEED, SEQUENCE[order], POSITION[order], Purpose.TOKEN, 37), whole[order])
    alone = gumbel(SEED, SEQUENCE[1:2], POSITION[1:2, 2], Purpose.TOKEN, 37)
    np.testing.assert_array_equal(alone[0], whole[1, 2])


def test_draws_do_not_depend_on_which_tokens_are_asked_for():
    whole = gumbel(SEED, SEQUENCE, POSITION, Purpose.DRAFT, 37)
    tokens = np.random.default_rng(0).integers(0, 37, (3, 4, 5), np.int32)
    some = gumbel_at(SEED, SEQUENCE, POSITION, purpose=Purpose.DRAFT, tokens=tokens)
    np.testing.assert_array_equal(some, np.take_along_axis(np.asarray(whole), tokens, axis=-1))
    np.testing.assert_array_equal(gumbel(SEED, SEQUENCE, POSITION, Purpose.DRAFT, 64)[..., :37], whole)


def test_purpose_may_differ_by_sequence():
    purpose = np.array([Purpose.RESIDUAL, Purpose.TOKEN, Purpose.RESIDUAL])
    mixed = gumbel(SEED, SEQUENCE, POSITION, purpose, 9)
    residual = gumbel(SEED, SEQUENCE, POSITION, Purpose.RESIDUAL, 9)
    token = gumbel(SEED, SEQUENCE, POSITION, Purpose.TOKEN, 9)
    np.testing.assert_array_equal(mixed, np.where((purpose == Purpose.TOKEN)[:, None, None], token, residual))


def test_every_part_of_the_key_changes_the_draw():
    def draw(seed=1, sequence=2, position=3, purpose=Purpose.TOKEN):
        return float(uniform(np.uint32(seed), np.array([sequence]), np.array([position]), purpose=purpose)[0])

    draws = [draw(), draw(seed=2), draw(sequence=3), draw(position=2), draw(sequence=3, position=2)]
    draws += [draw(purpose=purpose) for purpose in Purpose if purpose != Purpose.TOKEN]
    assert len(set(draws)) == len(draws)


def test_bits_are_those_of_threefry():
    key = jnp.array([0x13198A2E, 0x03707344], jnp.uint32)
    counter = np.arange(14, dtype=np.uint32) * np.uint32(0x12345679)
    got = np.concatenate(random._threefry(key, np.split(counter, 2)))
    np.testing.assert_array_equal(got, threefry_2x32(key, jnp.asarray(counter)))


def test_a_seed_means_the_same_draws_for_ever():
    got = uniform(np.uint32(0), np.array([0, 1]), np.array([0, 4095]), purpose=Purpose.ACCEPT)
    np.testing.assert_array_equal(np.asarray(got) * 2**24, [7401501, 16432656])
    got = gumbel(np.uint32(2**32 - 1), np.array([0]), np.array([17]), Purpose.TOKEN, 3)
    np.testing.assert_allclose(got[0], [-0.3263962, -1.0477569, 1.0062878], rtol=1e-5)


def test_draws_are_uniform_and_gumbel_and_independent():
    position = np.arange(4000)
    sequence = np.zeros(4000, int)
    u = np.asarray(uniform(SEED, sequence, position, purpose=Purpose.ACCEPT))
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    noise = np.asarray(gumbel(SEED, sequence, position, Purpose.TOKEN, 5))
    for token in range(5):
        assert stats.kstest(noise[:, token], "gumbel_r").pvalue > 1e-3
    draft = np.asarray(gumbel(SEED, sequence, position, Purpose.DRAFT, 5))
    others = np.stack([noise[:, 0], noise[:, 1], draft[:, 0], u])
    correlation = np.corrcoef(others) - np.eye(4)
    assert np.abs(correlation).max() < 4 / np.sqrt(4000)


def test_noise_is_finite_and_fine_in_the_tail(monkeypatch):
    """Coarse steps in u near 1 would tie rare tokens of a large vocabulary, and -inf could exclude the only token."""
    extremes = jnp.array([0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1], jnp.uint32)
    monkeypatch.setattr("specjax.decoding.random._bits", lambda *key: extremes[key[-1]])
    noise = np.asarray(random.gumbel(SEED, np.array([0]), np.array([0]), Purpose.TOKEN, 6))[0]
    assert np.isfinite(noise).all()
    assert (np.diff(noise)[:3] < 0).all()
    u = (np.array([0, 1, 2, 2**31]) + 0.5) / 2**32
    np.testing.assert_allclose(noise[:4], stats.gumbel_r.isf(u), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "config",
    [SamplerConfig(1.0), SamplerConfig(0.7, top_k=4), SamplerConfig(1.3, top_p=0.8), SamplerConfig(1.0, min_p=0.1)],
    ids=str,
)
def test_sampled_tokens_follow_the_warped_distribution(config):
    n = 5000
    row = np.array([1.0, -0.5, 2.0, 0.3, 2.0, -3.0, 0.9], np.float32)
    tokens = draw(np.broadcast_to(row, (n, 7)), np.arange(n), np.full(n, 3), config=config)
    p = np.exp(np.asarray(warped(row[None], alike(1, config))[0], np.float64))
    counts = np.bincount(tokens, minlength=7)
    assert counts[p == 0].sum() == 0
    kept = p > 0
    assert stats.chisquare(counts[kept], n * p[kept] / p.sum()).pvalue > 1e-3


def test_sampling_is_argmax_of_warped_logits_plus_noise():
    logits = 3 * np.random.default_rng(1).standard_normal((3, 4, 37), np.float32)
    noise = gumbel(SEED, SEQUENCE, POSITION, Purpose.TOKEN, 37)
    for config in SamplerConfig(0.9), SamplerConfig(0.9, top_k=5, top_p=0.9):
        got = draw(logits, SEQUENCE, POSITION, config=config)
        np.testing.assert_array_equal(got, sample(warped(logits, alike(len(logits), config)), noise))


def test_rows_are_sampled_alike_alone_together_and_vmapped():
    config = SamplerConfig(0.9, top_k=20, top_p=0.95, min_p=0.01)
    logits = 3 * np.random.default_rng(1).standard_normal((3, 4, 37), np.float32)
    whole = draw(logits, SEQUENCE, POSITION, config=config)
    wants = alike(len(logits), config, seed=int(SEED))
    by_column = jax.vmap(draw_rows, in_axes=(1, None, 1, None), out_axes=1)(logits, SEQUENCE, POSITION, wants)
    np.testing.assert_array_equal(by_column, whole)
    alone = draw(logits[2:], SEQUENCE[2:], POSITION[2:], config=config)
    np.testing.assert_array_equal(alone, whole[2:])
