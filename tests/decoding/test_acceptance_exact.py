"""Losslessness on toy languages small enough to enumerate every sequence.

Target and drafter are tables of logits with one row for each prefix. Prefixes are the nodes of a tree: the root is 0,
and token t leads from `node` to `node * V + 1 + t`. The distribution of whole sequences is found twice: by enumerating
the arithmetic of the real acceptance function, and by running the real functions on thousands of sequences.
"""

import itertools
from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from wants import alike, lengths_of

from specjax.analysis.lossless.enumeration import CORRECT, Language, speculation_odds, stopping, target_odds
from specjax.decoding.acceptance import RULES, accept, draws_drafts, propose_token
from specjax.decoding.draft_control import effective_drafts, update_streak, wanted_drafts
from specjax.decoding.random import Purpose, gumbel
from specjax.decoding.sampling import sample, sample_tokens, warp
from specjax.decoding.settings import DraftConfig, SamplerConfig

PLAIN = SamplerConfig(1.0)
WARPED = SamplerConfig(0.8, top_k=3, top_p=0.95)


def language(vocab_size, length, seed=0):
    made = Language.alike(vocab_size, length, seed)
    return made.target, made.drafter


def nodes_along(node, drafts, vocab_size):
    """The prefixes before and after each draft, [B, K + 1]."""
    nodes = [node]
    for i in range(drafts.shape[1]):
        nodes.append(nodes[-1] * vocab_size + 1 + drafts[:, i])
    return jnp.stack(nodes, axis=1)


# Enumeration -------------------------------------------------------------------------------------------------------


def by_drawn_token(config):
    """Draft lengths that look at the probability of the token that was drawn."""

    @jax.jit
    def lengths(draft_logits, drafts, budget):
        drawn = jnp.take_along_axis(jax.nn.softmax(draft_logits), drafts[..., None], axis=-1)[..., 0]
        return lengths_of(drawn, config, budget, jnp.zeros(len(drafts), bool))

    return lengths


@jax.jit
def ragged(draft_logits, drafts, budget):
    """Draft lengths from 0 to K that depend on the text before the drafts."""
    chosen = jnp.abs(jnp.round(7 * draft_logits[:, 0, 0])).astype(jnp.int32) % (drafts.shape[1] + 1)
    return jnp.minimum(chosen, jnp.maximum(budget - 1, 0))


@cache
def always(n_drafts):
    """One function for all tests: it is compiled."""
    return stopping(DraftConfig(n_max=n_drafts))


def distance(rule, spoken, n_drafts, config, lengths, **how):
    """How far speculation is from the target: the largest difference of probabilities, and the total variation."""
    got = speculation_odds(CORRECT[rule], spoken, n_drafts, config, lengths, **how).texts
    difference = np.abs(got - target_odds(spoken, config))
    return difference.max(), difference.sum() / 2


@pytest.mark.parametrize("rule", CORRECT)
@pytest.mark.parametrize(
    ("vocab_size", "length", "n_drafts", "config", "drawn"),
    [
        (3, 4, 3, PLAIN, True),
        (4, 3, 2, WARPED, True),
        (5, 3, 1, WARPED, True),
        (3, 4, 2, PLAIN, False),
        (3, 4, 3, SamplerConfig(1.3, min_p=0.3), False),
        (3, 4, 3, SamplerConfig(0.7, min_p=0.15), True),
    ],
)
def test_every_text_has_its_target_probability(rule, vocab_size, length, n_drafts, config, drawn):
    spoken = Language.alike(vocab_size, length)
    assert distance(rule, spoken, n_drafts, config, always(n_drafts), drawn=drawn)[0] < 1e-6


@pytest.mark.parametrize("rule", CORRECT)
@pytest.mark.parametrize("drawn", [True, False])
def test_drafts_of_any_length_keep_the_distribution(rule, drawn):
    assert distance(rule, Language.alike(3, 4, seed=1), 3, PLAIN, ragged, drawn=drawn)[0] < 1e-6


@pytest.mark.parametrize("rule", CORRECT)
def test_rounds_that_draw_and_rounds_that_look_up_keep_the_distribution_together(rule):
    """Which of the two a round is hangs on its text alone, as with several drafters."""
    spoken = Language.alike(3, 4, seed=1)
    drawn = np.arange(len(spoken.target)) % 3 > 0
    assert distance(rule, spoken, 3, PLAIN, ragged, drawn=drawn)[0] < 1e-6
    assert distance(rule, spoken, 2, WARPED, always(2), drawn=~drawn)[0] < 1e-6


@pytest.mark.parametrize("rule", CORRECT)
def test_a_drafter_that_scores_some_tokens_keeps_the_distribution(rule):
    spoken = Language.alike(4, 3, seed=2)
    scored = np.arange(4) != np.argsort(spoken.drafter, axis=1)[:, 1:2]
    trimmed = replace(spoken, drafter=np.where(scored, spoken.drafter, -np.inf).astype(np.float32))
    for drawn in (True, False):
        assert distance(rule, trimmed, 2, WARPED, always(2), drawn=drawn)[0] < 1e-6


@pytest.mark.parametrize("rule", CORRECT)
def test_stopping_for_want_of_confidence_keeps_the_distribution(rule):
    """The confidence in a draft depends on the drafts before it, not on itself."""
    spoken, config = Language.alike(3, 4), DraftConfig(n_max=3, p_min=0.55)
    lengths = stopping(config)
    assert distance(rule, spoken, 3, PLAIN, lengths)[0] < 1e-6
    assert distance(rule, spoken, 3, PLAIN, lengths, drawn=False)[0] < 1e-6
    assert distance(rule, spoken, 3, PLAIN, by_drawn_token(config))[1] > 0.05


@pytest.mark.parametrize("rule", CORRECT)
def test_the_settings_refused_where_drafts_are_drawn_do_bias_them(rule):
    config = DraftConfig(n_max=2, n_min=2, p_min=0.55)
    with pytest.raises(ValueError, match="bias"):
        config.check_lossless(drawn=draws_drafts(rule))
    assert distance(rule, Language.alike(3, 4), 2, PLAIN, stopping(config))[1] > 0.01


def test_acceptance_is_the_overlap_of_the_distributions():
    """One minus the total variation distance: no rule that keeps the target's distribution can accept more."""
    target, drafter = language(5, 1)
    p, q = softmax(target[0]), softmax(drafter[0])
    longer = Language(np.concatenate([target] * 6), np.concatenate([drafter] * 6), 2)  # the same after every token
    for correct in CORRECT.values():
        accepted = speculation_odds(correct, longer, 1, PLAIN, always(1)).accepted
        np.testing.assert_allclose(accepted, np.minimum(p, q).sum(), atol=1e-6)


@pytest.mark.parametrize("drawn", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_block_has_at_least_as_many_accepted_drafts(drawn):
    """More of them where drafts are drawn; deterministic drafts gain nothing."""
    gains = []
    for seed, config in itertools.product(range(3), (PLAIN, WARPED)):
        spoken = Language.alike(3, 4, seed)
        block, rejection = (
            speculation_odds(CORRECT[rule], spoken, 3, config, always(3), drawn=drawn).accepted
            for rule in ("block", "rejection")
        )
        gains.append(block - rejection)
    assert min(gains) > -1e-6
    assert max(gains) > 0.02 if drawn else max(gains) < 1e-6


# Running -----------------------------------------------------------------------------------------------------------


def accept_without_residual(logits, drafts, logq, n_drafted, *, rule, settings, sequence, position):
    """A wrong rule: after a rejection it draws from p instead of the residual."""
    where = {"sequence": sequence, "position": position}
    verdict = accept(logits, drafts, logq, n_drafted, rule=rule, settings=settings, **where)
    row = jnp.take_along_axis(logits, verdict.n_accepted[:, None, None], axis=1)[:, 0]
    purpose = jnp.where(verdict.n_accepted < n_drafted, Purpose.RESIDUAL, Purpose.TOKEN)
    noise = gumbel(settings.seed, sequence, position + verdict.n_accepted, purpose, logits.shape[-1])
    token = sample(warp(row, settings), noise)
    here = jnp.arange(logits.shape[1]) == verdict.n_accepted[:, None]
    return verdict._replace(next_token=token, tokens=jnp.where(here, token[:, None], verdict.tokens))


@partial(jax.jit, static_argnames=("length", "n_drafts", "rule", "config", "control", "judge", "seed", "fresh"))
def generate(target, drafter, sequence, length, n_drafts, rule, config, control=None, judge=accept, seed=3, fresh=True):
    """Decode `length` tokens of each sequence with the real functions, [B, length]. Drafts that are not `fresh` are
    drawn with the noise of the round before where it got as far.
    """
    vocab_size, batch = target.shape[1], sequence.shape[0]
    control = control or DraftConfig(n_max=n_drafts)
    target, drafter, sequence = jnp.asarray(target), jnp.asarray(drafter), jnp.asarray(sequence)
    settings = alike(batch, config, seed=seed, draft=control)
    draws = {"rule": rule, "settings": settings, "sequence": sequence}

    def round_(state):
        tokens, node, done, streak, skipping = state
        here, proposals = node, []
        for i in range(n_drafts):
            proposals.append(
                propose_token(drafter[here], position=done + i, ahead=jnp.full_like(done, i * fresh), **draws)
            )
            here = here * vocab_size + 1 + proposals[-1].token
        stacked = jax.tree.map(lambda *columns: jnp.stack(columns, axis=1), *proposals)
        wanted = wanted_drafts(settings, length - done, skipping)
        n_drafted = effective_drafts(stacked.confidence, settings, wanted)
        logits = target[nodes_along(node, stacked.token, vocab_size)]
        verdict = judge(logits, stacked.token, stacked.logq, n_drafted, position=done, **draws)
        streak, skipping = update_streak(streak, n_drafted, verdict.n_accepted, settings)
        for i in range(n_drafts + 1):
            emitted = (i <= verdict.n_accepted) & (done < length)
            tokens = tokens.at[jnp.arange(batch), jnp.where(emitted, done, length)].set(
                verdict.tokens[:, i], mode="drop"
            )
            node = jnp.where(emitted, node * vocab_size + 1 + verdict.tokens[:, i], node)
            done += emitted
        return tokens, node, done, streak, skipping

    zero = jnp.zeros(batch, jnp.int32)
    start = (jnp.full((batch, length), -1), zero, zero, zero, zero.astype(bool))
    return jax.lax.while_loop(lambda state: jnp.any(state[2] < length), round_, start)[0]


@partial(jax.jit, static_argnames=("length", "config", "seed"))
def generate_plainly(target, sequence, length, config, seed=3):
    node, tokens = jnp.zeros_like(sequence), []
    for i in range(length):
        position = jnp.full_like(sequence, i)
        wants = alike(len(node), config, seed=seed)
        token = sample_tokens(target[node], settings=wants, sequence=sequence, position=position)
        node = node * target.shape[1] + 1 + token
        tokens.append(token)
    return jnp.stack(tokens, axis=1)


def p_value(tokens, want):
    """Chi-square of whole sequences; those expected fewer than 5 times count as one."""
    counts = np.zeros(want.shape)
    np.add.at(counts, tuple(np.asarray(tokens).T), 1)
    assert counts[want == 0].sum() == 0
    expected = want.ravel() / want.sum() * len(tokens)
    common = expected >= 5
    observed = counts.ravel()
    bins = [(np.append(x[common], x[~common].sum())) for x in (observed, expected)]
    used = bins[1] > 0
    return stats.chisquare(bins[0][used], bins[1][used]).pvalue


@pytest.mark.parametrize("rule", CORRECT)
@pytest.mark.parametrize(
    ("vocab_size", "length", "n_drafts", "config", "control"),
    [
        (3, 4, 3, PLAIN, DraftConfig(n_max=3, p_min=0.45, skip_streak=1)),
        (5, 3, 2, WARPED, None),
        pytest.param(4, 3, 1, PLAIN, None, marks=pytest.mark.slow),
    ],
)
def test_sampled_sequences_follow_the_target(rule, vocab_size, length, n_drafts, config, control):
    target, drafter = language(vocab_size, length)
    tokens = generate(target, drafter, np.arange(20_000), length, n_drafts, rule, config, control)
    assert p_value(tokens, target_odds(Language(target, drafter, length), config)) > 1e-3


def test_the_chi_square_test_sees_a_rule_without_residual():
    target, drafter = language(4, 3)
    want = target_odds(Language(target, drafter, 3), PLAIN)
    biased = generate(target, drafter, np.arange(20_000), 3, 1, "rejection", PLAIN, judge=accept_without_residual)
    assert p_value(biased, want) < 1e-12


@pytest.mark.slow
def test_a_block_must_not_use_the_noise_of_the_block_before():
    """What a block drafted beyond what it accepted has decided how much that was. Rejection forgets it."""
    target, drafter = language(3, 5)
    want = target_odds(Language(target, drafter, 5), PLAIN)
    for rule, fresh, fits in (("block", True, True), ("block", False, False), ("rejection", False, True)):
        tokens = generate(target, drafter, np.arange(20_000), 5, 3, rule, PLAIN, fresh=fresh)
        assert (p_value(tokens, want) > 1e-3) == fits, (rule, fresh)


def test_a_block_of_one_draft_is_rejection_draw_for_draw():
    target, drafter = language(4, 5)
    by_rule = [generate(target, drafter, np.arange(64), 5, 1, rule, WARPED) for rule in ("block", "rejection")]
    np.testing.assert_array_equal(*by_rule)


@pytest.mark.parametrize("n_drafts", [1, 3])
def test_coupled_tokens_are_those_of_plain_sampling_whatever_the_drafter(n_drafts):
    """Also in another batch, in another order, and with draft lengths that look at the draw."""
    length = 5
    target, drafter = language(4, length)
    sequence = np.arange(8)
    want = np.asarray(generate_plainly(target, sequence, length, WARPED))
    control = DraftConfig(n_max=n_drafts, n_min=min(2, n_drafts), p_min=0.3, skip_streak=1)
    order = np.array([3, 6, 0, 7, 1, 5, 2, 4])
    for guess in (drafter, -target, target):
        got = generate(target, guess, sequence, length, n_drafts, "coupled", WARPED, control)
        np.testing.assert_array_equal(got, want)
        got = generate(target, guess, sequence[order], length, n_drafts, "coupled", WARPED, control)
        np.testing.assert_array_equal(got, want[order])
    alone = generate(target, drafter, sequence[5:6], length, 2, "coupled", WARPED)
    np.testing.assert_array_equal(alone, want[5:6])


def test_greedy_tokens_are_those_of_plain_greedy_decoding():
    target, drafter = language(4, 5)
    sequence = np.arange(2)
    want = generate_plainly(target, sequence, 5, SamplerConfig())
    for rule in RULES:
        got = generate(target, drafter, sequence, 5, 2, rule, SamplerConfig())
        np.testing.assert_array_equal(got, want)
