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
        pytest.param(5, 3, 1, WARPED, True, marks=pytest.mark.slow),
        pytest.param(3, 4, 2, PLAIN, False, marks=pytest.mark.slow),
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
    assert distance(rule, spoken, 3, WARPED, always(3), drawn=~drawn)[0] < 1e-6


@pytest.mark.parametrize("rule", CORRECT)
def test_a_drafter_that_scores_some_tokens_keeps_the_distribution(rule):
    spoken = Language.alike(3, 4, seed=2)
    scored = np.arange(3) != np.argsort(spoken.drafter, axis=1)[:, 1:2]
    trimmed = replace(spoken, drafter=np.where(scored, spoken.drafter, -np.inf).astype(np.float32))
    for config, drawn in ((WARPED, True), (PLAIN, True), (PLAIN, False)):
        assert distance(rule, trimmed, 3, config, always(3), drawn=drawn)[0] < 1e-6


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
    assert distance(rule, Language.alike(3, 4), 3, PLAIN, stopping(config))[1] > 0.01


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

ROOM = 3  # drafts of a round, at most
SEQUENCES, FEW = np.arange(20_000), np.arange(64)


@cache
def spoken(vocab_size=4, length=4):
    """Tables of target and drafter, and the length of a text."""
    return *language(vocab_size, length), length


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


@cache
def wants(batch, config, control):
    return alike(batch, config, seed=3, draft=control)


def generate(language, sequence, rule, config, control=DraftConfig(ROOM), **how):
    """Decode every text of the language by real functions, [B, length], with room for `ROOM` drafts in every round.

    What differs by row is data, so that all tests of one size share the program of a rule.
    """
    target, drafter, length = language
    settings = wants(len(sequence), config, control)
    return np.asarray(decode(target, drafter, sequence, settings, length=length, rule=rule, **how))


@partial(jax.jit, static_argnames=("length", "rule", "judge", "fresh"))
def decode(target, drafter, sequence, settings, *, length, rule, judge=accept, fresh=True):
    """Drafts that are not `fresh` are drawn with the noise of the round before where it got as far."""
    vocab_size, batch, n_drafts = target.shape[1], sequence.shape[0], ROOM
    draws = {"rule": rule, "settings": settings, "sequence": sequence}

    def round_(state):
        tokens, node, done, streak, skipping = state

        def draft(here, i):
            proposal = propose_token(drafter[here], position=done + i, ahead=jnp.full_like(done, i * fresh), **draws)
            return here * vocab_size + 1 + proposal.token, proposal

        _, columns = jax.lax.scan(draft, node, jnp.arange(n_drafts))
        stacked = jax.tree.map(lambda column: jnp.moveaxis(column, 0, 1), columns)
        wanted = wanted_drafts(settings, length - done, skipping)
        n_drafted = effective_drafts(stacked.confidence, settings, wanted)
        logits = target[nodes_along(node, stacked.token, vocab_size)]
        verdict = judge(logits, stacked.token, stacked.logq, n_drafted, position=done, **draws)
        streak, skipping = update_streak(streak, n_drafted, verdict.n_accepted, settings)

        def emit(i, state):
            tokens, node, done = state
            emitted = (i <= verdict.n_accepted) & (done < length)
            tokens = tokens.at[jnp.arange(batch), jnp.where(emitted, done, length)].set(
                verdict.tokens[:, i], mode="drop"
            )
            return tokens, jnp.where(emitted, node * vocab_size + 1 + verdict.tokens[:, i], node), done + emitted

        return *jax.lax.fori_loop(0, n_drafts + 1, emit, (tokens, node, done)), streak, skipping

    zero = jnp.zeros(batch, jnp.int32)
    start = (jnp.full((batch, length), -1), zero, zero, zero, zero.astype(bool))
    return jax.lax.while_loop(lambda state: jnp.any(state[2] < length), round_, start)[0]


@partial(jax.jit, static_argnames="length")
def decode_plainly(target, sequence, settings, *, length):
    def say(node, i):
        position = jnp.full_like(sequence, i)
        token = sample_tokens(target[node], settings=settings, sequence=sequence, position=position)
        return node * target.shape[1] + 1 + token, token

    return jax.lax.scan(say, jnp.zeros_like(sequence), jnp.arange(length))[1].T


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
    ("size", "config", "control"),
    [
        ((4, 4), PLAIN, DraftConfig(n_max=3, p_min=0.45, skip_streak=1)),
        ((4, 4), WARPED, DraftConfig(n_max=2)),
        ((4, 4), PLAIN, DraftConfig(n_max=1)),
        pytest.param((5, 3), WARPED, DraftConfig(n_max=2), marks=pytest.mark.slow),
    ],
)
def test_sampled_sequences_follow_the_target(rule, size, config, control):
    target, drafter, length = spoken(*size)
    tokens = generate(spoken(*size), SEQUENCES, rule, config, control)
    assert p_value(tokens, target_odds(Language(target, drafter, length), config)) > 1e-3


def test_the_chi_square_test_sees_a_rule_without_residual():
    target, drafter, length = spoken()
    want = target_odds(Language(target, drafter, length), PLAIN)
    judge = accept_without_residual
    biased = generate(spoken(), SEQUENCES, "rejection", PLAIN, DraftConfig(n_max=1), judge=judge)
    assert p_value(biased, want) < 1e-12


@pytest.mark.slow
def test_a_block_must_not_use_the_noise_of_the_block_before():
    """What a block drafted beyond what it accepted has decided how much that was. Rejection forgets it."""
    target, drafter, length = spoken(3, 5)
    want = target_odds(Language(target, drafter, length), PLAIN)
    for rule, fresh, fits in (("block", True, True), ("block", False, False), ("rejection", False, True)):
        tokens = generate(spoken(3, 5), SEQUENCES, rule, PLAIN, fresh=fresh)
        assert (p_value(tokens, want) > 1e-3) == fits, (rule, fresh)


def test_a_block_of_one_draft_is_rejection_draw_for_draw():
    by_rule = [generate(spoken(), SEQUENCES, rule, WARPED, DraftConfig(n_max=1)) for rule in ("block", "rejection")]
    np.testing.assert_array_equal(*by_rule)


@pytest.mark.parametrize("n_drafts", [1, 3])
def test_coupled_tokens_are_those_of_plain_sampling_whatever_the_drafter(n_drafts):
    """Also beside other rows, in another order, and with draft lengths that look at the draw."""
    target, drafter, length = spoken()
    want = plainly(WARPED)
    control = DraftConfig(n_max=n_drafts, n_min=min(2, n_drafts), p_min=0.3, skip_streak=1)
    order = np.random.default_rng(0).permutation(len(FEW))
    for guess in (drafter, -target, target):
        got = generate((target, guess, length), FEW, "coupled", WARPED, control)
        np.testing.assert_array_equal(got, want)
        got = generate((target, guess, length), FEW[order], "coupled", WARPED, control)
        np.testing.assert_array_equal(got, want[order])
    beside = generate(spoken(), np.where(FEW == 5, 5, 7), "coupled", WARPED, DraftConfig(n_max=2))
    np.testing.assert_array_equal(beside[5], want[5])


def test_greedy_tokens_are_those_of_plain_greedy_decoding():
    for rule in RULES:
        sequence = FEW if rule == "coupled" else SEQUENCES
        got = generate(spoken(), sequence, rule, SamplerConfig(), DraftConfig(n_max=2))
        want = np.resize(plainly(SamplerConfig()), got.shape)  # the same text in every row
        np.testing.assert_array_equal(got, want, err_msg=rule)


@cache
def plainly(config):
    target, _, length = spoken()
    return np.asarray(decode_plainly(target, FEW, wants(len(FEW), config, DraftConfig(n_max=0)), length=length))
