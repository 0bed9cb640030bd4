"""Losslessness on toy languages small enough to enumerate every sequence.

Target and drafter are tables of logits with one row for each prefix. Prefixes are the nodes of a tree: the root is 0,
and token t leads from `node` to `node * V + 1 + t`. The distribution of whole sequences is found twice: by enumerating
the arithmetic of the real acceptance function, and by running the real functions on thousands of sequences.
"""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax
from wants import alike, lengths_of

from specjax.decoding.acceptance import RULES, accept, correction, propose_token
from specjax.decoding.draft_control import effective_drafts, update_streak, wanted_drafts
from specjax.decoding.random import Purpose, gumbel
from specjax.decoding.sampling import sample, sample_tokens, warp, with_shortlist
from specjax.decoding.settings import DraftConfig, SamplerConfig

PLAIN = SamplerConfig(1.0)
WARPED = SamplerConfig(0.8, top_k=3, top_p=0.95)
jitted_warp = jax.jit(lambda logits, config: warp(logits, alike(len(logits), config)), static_argnames="config")


def language(vocab_size, length, seed=0):
    """Logits of target and drafter for every prefix shorter than `length`; they are alike, as real ones are."""
    n_prefixes = (vocab_size**length - 1) // (vocab_size - 1)
    target, noise = np.random.default_rng(seed).standard_normal((2, n_prefixes, vocab_size), np.float32)
    return np.float32(1.2) * target, np.float32(0.9) * target + np.float32(0.8) * noise


def nodes_along(node, drafts, vocab_size):
    """The prefixes before and after each draft, [B, K + 1]."""
    nodes = [node]
    for i in range(drafts.shape[1]):
        nodes.append(nodes[-1] * vocab_size + 1 + drafts[:, i])
    return jnp.stack(nodes, axis=1) if isinstance(nodes[-1], jax.Array) else np.stack(nodes, axis=1)


# Enumeration -------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="config")
def judge(u, logits, drafts, logq, n_drafted, config):
    """The real rule with the uniforms given: how many it accepts, and the distribution that it then draws from."""

    def decide(candidates):
        n_accepted, _, following = correction(candidates, drafts, logq, n_drafted, u)
        one_hot = jax.nn.one_hot(following.tokens, logits.shape[-1])
        return n_accepted, jnp.einsum("bn,bnv->bv", jax.nn.softmax(following.scores), one_hot)

    return with_shortlist(logits, alike(len(drafts), config), decide)


def rejection_odds(logits, drafts, logq, n_drafted, config):
    """Acceptance probability of each draft given that those before it stood [B, K], by bisection over the uniform draw,
    and the distribution of the next token after each number of accepted drafts [B, K + 1, V]."""
    n_rows, n_drafts = drafts.shape
    probability, following = [], []
    for i in range(n_drafts + 1):
        u = np.zeros((n_rows, n_drafts), np.float32)
        if i < n_drafts:
            low, high = np.zeros(n_rows), np.ones(n_rows)
            for _ in range(24):
                u[:, i] = (low + high) / 2
                stands = np.asarray(judge(u, logits, drafts, logq, n_drafted, config)[0]) > i
                low, high = np.where(stands, u[:, i], low), np.where(stands, high, u[:, i])
            probability.append((low + high) / 2)
            u[:, i] = 1
        following.append(judge(u, logits, drafts, logq, n_drafted, config)[1])
    return np.stack(probability, axis=1), np.stack(following, axis=1).astype(np.float64)


def enumerate_speculation(target, drafter, length, n_drafts, config, lengths_of_drafts, one_hot=False):
    """Probability of every sequence under speculative decoding, [V] * length.

    `lengths_of_drafts` maps (drafter logits [B, K, V], drafts [B, K], budget [B]) to n_drafted [B].
    """
    vocab_size = target.shape[1]
    n_prefixes = target.shape[0]
    depth = np.zeros(n_prefixes, int)
    for node in range(1, n_prefixes):
        depth[node] = depth[(node - 1) // vocab_size] + 1

    blocks = np.array(list(itertools.product(range(vocab_size), repeat=n_drafts)))
    node, drafts = np.repeat(np.arange(n_prefixes), len(blocks)), np.tile(blocks, (n_prefixes, 1))
    nodes = np.minimum(nodes_along(node, drafts, vocab_size), n_prefixes - 1)  # those too deep are beyond the budget
    draft_logits = drafter[nodes[:, :-1]]
    n_drafted = np.asarray(lengths_of_drafts(draft_logits, drafts, length - depth[node]))
    logq = jitted_warp(draft_logits, SamplerConfig() if one_hot else config)
    odds, following = rejection_odds(target[nodes], drafts, None if one_hot else logq, n_drafted, config)
    q = np.take_along_axis(np.exp(np.asarray(logq, np.float64)), drafts[..., None], axis=-1)[..., 0]

    completions = {}
    for start in reversed(range(n_prefixes)):
        result = np.zeros([vocab_size] * (length - depth[start]))
        for row in range(start * len(blocks), (start + 1) * len(blocks)):
            weight = q[row].prod()
            for n in range(int(n_drafted[row]) + 1):
                stop = 1 - odds[row, n] if n < n_drafted[row] else 1.0
                for token in range(vocab_size):
                    child = int(nodes[row, n]) * vocab_size + 1 + token
                    rest = completions.get(child, 1.0)
                    result[(*blocks[row % len(blocks), :n], token)] += weight * stop * following[row, n, token] * rest
                if n < n_drafted[row]:
                    weight *= odds[row, n]
        completions[start] = result
    return completions[0]


def enumerate_target(target, length, config):
    vocab_size = target.shape[1]
    p = np.exp(np.asarray(jitted_warp(target, config), np.float64))
    p /= p.sum(axis=1, keepdims=True)
    result = np.zeros([vocab_size] * length)
    for sequence in itertools.product(range(vocab_size), repeat=length):
        node, result[sequence] = 0, 1.0
        for token in sequence:
            result[sequence] *= p[node, token]
            node = node * vocab_size + 1 + token
    return result


def confident(config):
    """The real draft lengths, from the real confidences."""

    @jax.jit
    def lengths(draft_logits, drafts, budget):
        zero = jnp.zeros(draft_logits.shape[:1], jnp.int32)
        draws = {"rule": "rejection", "settings": alike(len(zero), PLAIN), "sequence": zero, "position": zero}
        columns = [propose_token(draft_logits[:, i], **draws).confidence for i in range(drafts.shape[1])]
        return lengths_of(jnp.stack(columns, axis=1), config, budget, zero.astype(bool))

    return lengths


def by_drawn_token(config):
    """Draft lengths that look at the probability of the token that was drawn."""

    @jax.jit
    def lengths(draft_logits, drafts, budget):
        drawn = jnp.take_along_axis(jax.nn.softmax(draft_logits), drafts[..., None], axis=-1)[..., 0]
        return lengths_of(drawn, config, budget, jnp.zeros(len(drafts), bool))

    return lengths


@pytest.mark.parametrize(
    ("vocab_size", "length", "n_drafts", "config", "one_hot"),
    [
        (3, 4, 3, PLAIN, False),
        (4, 3, 2, WARPED, False),
        (5, 3, 1, WARPED, False),
        (3, 4, 2, PLAIN, True),
    ],
)
def test_rejection_gives_every_sequence_its_target_probability(vocab_size, length, n_drafts, config, one_hot):
    target, drafter = language(vocab_size, length)
    lengths = confident(DraftConfig(n_max=n_drafts))
    got = enumerate_speculation(target, drafter, length, n_drafts, config, lengths, one_hot)
    np.testing.assert_allclose(got, enumerate_target(target, length, config), atol=1e-6)


def test_stopping_for_want_of_confidence_keeps_the_distribution():
    target, drafter = language(3, 4)
    want = enumerate_target(target, 4, PLAIN)
    config = DraftConfig(n_max=3, p_min=0.55)
    got = enumerate_speculation(target, drafter, 4, 3, PLAIN, confident(config))
    np.testing.assert_allclose(got, want, atol=1e-6)
    by_draw = enumerate_speculation(target, drafter, 4, 3, PLAIN, by_drawn_token(config))
    assert np.abs(by_draw - want).sum() / 2 > 0.05


def test_the_settings_refused_for_rejection_do_bias_it():
    target, drafter = language(3, 4)
    config = DraftConfig(n_max=2, n_min=2, p_min=0.55)
    with pytest.raises(ValueError, match="bias"):
        config.check_lossless(drawn=True)
    got = enumerate_speculation(target, drafter, 4, 2, PLAIN, confident(config))
    assert np.abs(got - enumerate_target(target, 4, PLAIN)).sum() / 2 > 0.01


def test_acceptance_is_the_overlap_of_the_distributions():
    """One minus the total variation distance: no rule that keeps the target's distribution can accept more."""
    target, drafter = language(5, 1)
    p, q = softmax(target[0]), softmax(drafter[0])
    logits, logq = np.broadcast_to(target, (5, 2, 5)), np.broadcast_to(np.log(q), (5, 1, 5))
    odds, _ = rejection_odds(logits, np.arange(5)[:, None], logq, np.ones(5, np.int32), PLAIN)
    np.testing.assert_allclose(np.dot(q, odds[:, 0]), np.minimum(p, q).sum(), atol=1e-6)


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


@partial(jax.jit, static_argnames=("length", "n_drafts", "rule", "config", "control", "judge", "seed"))
def generate(target, drafter, sequence, length, n_drafts, rule, config, control=None, judge=accept, seed=3):
    """Decode `length` tokens of each sequence with the real functions, [B, length]."""
    vocab_size, batch = target.shape[1], sequence.shape[0]
    control = control or DraftConfig(n_max=n_drafts)
    target, drafter, sequence = jnp.asarray(target), jnp.asarray(drafter), jnp.asarray(sequence)
    settings = alike(batch, config, seed=seed, draft=control)
    draws = {"rule": rule, "settings": settings, "sequence": sequence}

    def round_(state):
        tokens, node, done, streak, skipping = state
        here, proposals = node, []
        for i in range(n_drafts):
            proposals.append(propose_token(drafter[here], position=done + i, **draws))
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


@pytest.mark.parametrize(
    ("vocab_size", "length", "n_drafts", "config", "control"),
    [
        (3, 4, 3, PLAIN, DraftConfig(n_max=3, p_min=0.45, skip_streak=1)),
        (5, 3, 2, WARPED, None),
        (4, 3, 1, PLAIN, None),
    ],
)
def test_sampled_sequences_follow_the_target_under_rejection(vocab_size, length, n_drafts, config, control):
    target, drafter = language(vocab_size, length)
    tokens = generate(target, drafter, np.arange(20_000), length, n_drafts, "rejection", config, control)
    assert p_value(tokens, enumerate_target(target, length, config)) > 1e-3


def test_the_chi_square_test_sees_a_rule_without_residual():
    target, drafter = language(4, 3)
    want = enumerate_target(target, 3, PLAIN)
    biased = generate(target, drafter, np.arange(20_000), 3, 1, "rejection", PLAIN, judge=accept_without_residual)
    assert p_value(biased, want) < 1e-12


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
