"""The edges of the acceptance rules, row by row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax
from wants import GREEDY, alike

from specjax.decoding.acceptance import PADDING, RULES, accept, propose_token
from specjax.decoding.random import Purpose, gumbel
from specjax.decoding.sampling import sample, sample_tokens, warp
from specjax.decoding.settings import SamplerConfig

SEED = np.uint32(5)
B, K, V = 4, 3, 23
SEQUENCE = np.array([4, 0, 9, 2])
POSITION = np.array([10, 3, 0, 7])
WARM = SamplerConfig(0.9, top_k=7, top_p=0.97)
CORRECTING = ("rejection", "block")

jitted_accept = jax.jit(accept, static_argnames="rule")
jitted_warp = jax.jit(warp)
jitted_propose = jax.jit(propose_token, static_argnames="rule")


def judge(logits, drafts, logq, n_drafted, rule="rejection", config=WARM, sequence=SEQUENCE, position=POSITION):
    drafts, n_drafted = np.asarray(drafts, np.int32), np.asarray(n_drafted, np.int32)
    draws = {"rule": rule, "settings": wants(config, len(logits)), "sequence": sequence, "position": position}
    return jax.tree.map(np.asarray, jitted_accept(logits, drafts, logq, n_drafted, **draws))


def wants(config, batch=B):
    return alike(batch, config, seed=int(SEED))


@jax.jit
def sample_rows(logits, position, settings):
    rows = position[:, None] + np.arange(logits.shape[1])
    return sample_tokens(logits, settings=settings, sequence=SEQUENCE, position=rows)


def plain(logits, config=WARM, position=POSITION):
    """What plain sampling gives at every row, [B, K + 1]."""
    return np.asarray(sample_rows(logits, position, wants(config)))


@pytest.fixture
def logits():
    return 2 * np.random.default_rng(0).standard_normal((B, K + 1, V), np.float32)


@pytest.fixture
def logq():
    return np.asarray(jitted_warp(2 * np.random.default_rng(1).standard_normal((B, K, V), np.float32), wants(WARM)))


def certainty(drafts):
    return np.where(np.arange(V) == drafts[..., None], np.float32(0), np.float32(-np.inf))


def same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("rule", RULES)
def test_greedy_accepts_the_common_prefix_of_ragged_drafts(rule, logits, logq):
    best = np.argmax(logits, axis=-1)
    drafts = best[:, :K].copy()
    drafts[1, 1] = (drafts[1, 1] + 1) % V
    drafts[2, 0] = (drafts[2, 0] + 1) % V
    verdict = judge(logits, drafts, logq, [3, 3, 3, 2], rule, GREEDY)
    np.testing.assert_array_equal(verdict.n_accepted, [3, 1, 0, 2])
    np.testing.assert_array_equal(verdict.next_token, best[np.arange(B), [3, 1, 0, 2]])
    for b, n in enumerate([3, 1, 0, 2]):
        np.testing.assert_array_equal(verdict.tokens[b], [*best[b, : n + 1], *[PADDING] * (K - n)])
    assert {x.dtype for x in verdict[:3]} == {jnp.dtype("int32")}
    assert np.isnan(verdict.p).all(), "greedy rows draw nothing"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("config", [GREEDY, WARM], ids=["greedy", "warm"])
def test_what_lies_beyond_the_drafts_is_never_read(rule, config, logits, logq):
    n_drafted = np.array([3, 0, 1, 2])
    drafts = np.argmax(logits[:, :K], axis=-1)
    want = judge(logits, drafts, logq, n_drafted, rule, config)[:3]
    dead = np.arange(K) >= n_drafted[:, None]
    poisoned_logits = np.where((np.arange(K + 1) > n_drafted[:, None])[..., None], np.nan, logits)
    poisoned_logq = np.where(dead[..., None], np.nan, logq)
    poisoned = judge(poisoned_logits, np.where(dead, PADDING, drafts), poisoned_logq, n_drafted, rule, config)
    same(poisoned[:3], want)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("config", [GREEDY, WARM], ids=["greedy", "warm"])
def test_rows_without_drafts_are_plain_decoding(rule, config, logits, logq):
    want = plain(logits, config)[:, 0]
    none = np.zeros(B, np.int32)
    verdict = judge(logits, np.zeros((B, K)), logq, none, rule, config)
    same(verdict.next_token, want)
    same(verdict.n_accepted, none)
    without_room = judge(logits[:, :1], np.zeros((B, 0)), logq[:, :0], none, rule, config)
    same(without_room.next_token, want)
    same(without_room.tokens, want[:, None])


@pytest.mark.parametrize("rule", RULES)
def test_a_greedy_config_drafts_the_argmax(rule, logits):
    draws = {"settings": wants(GREEDY), "sequence": SEQUENCE, "position": POSITION, "ahead": np.arange(B)}
    proposal = jitted_propose(logits[:, 0], rule=rule, **draws)
    same(proposal.token, np.argmax(logits[:, 0], axis=-1))


@pytest.mark.parametrize("rule", CORRECTING)
def test_if_all_are_accepted_the_plain_draw_follows(rule, logits):
    """The drafter is the target: p == q exactly, so that nothing is rejected and the residual is empty."""
    logq = np.asarray(jitted_warp(logits[:, :K], wants(WARM)))
    drafts = np.argmax(logq, axis=-1)
    n_drafted = np.array([3, 2, 1, 0])
    for position in POSITION + 100 * np.arange(8)[:, None]:
        verdict = judge(logits, drafts, logq, n_drafted, rule, position=position)
        np.testing.assert_array_equal(verdict.n_accepted, n_drafted)
        same(verdict.next_token, plain(logits, position=position)[np.arange(B), n_drafted])


@pytest.mark.parametrize("rule", CORRECTING)
def test_a_draft_that_the_target_excludes_is_always_rejected(rule, logits, logq):
    drafts = np.argmin(logits[:, :K], axis=-1)  # outside top_k, even if the drafter thinks otherwise
    for q in (logq, certainty(drafts), None):
        verdict = judge(logits, drafts, q, np.full(B, K), rule)
        np.testing.assert_array_equal(verdict.n_accepted, 0)
        allowed = np.asarray(jitted_warp(logits, wants(WARM)))[:, 0] > -np.inf
        assert allowed[np.arange(B), verdict.next_token].all()


@pytest.mark.parametrize("rule", CORRECTING)
def test_one_hot_q_and_no_q_are_the_same(rule, logits):
    drafts = np.argmax(logits[:, :K], axis=-1)
    one_hot = certainty(drafts)
    n_drafted = np.array([3, 3, 2, 1])
    same(judge(logits, drafts, one_hot, n_drafted, rule), judge(logits, drafts, None, n_drafted, rule))


@pytest.mark.parametrize("rule", CORRECTING)
def test_a_rejected_token_is_not_drawn_again_when_the_draft_was_certain(rule, logits):
    """With q one-hot the residual is p without the draft."""
    drafts = np.argmax(logits[:, :K], axis=-1)
    rejections = 0
    for start in range(0, 2000, 100):
        verdict = judge(logits, drafts, None, np.full(B, K), rule, position=POSITION + start)
        for n, token, row in zip(verdict.n_accepted, verdict.next_token, drafts, strict=True):
            if n < K:
                rejections += 1
                assert token != row[n]
    assert rejections > 10


@pytest.mark.parametrize("rule", CORRECTING)
def test_the_only_possible_token_is_accepted_and_drawn(rule, logits, logq):
    certain = np.where(np.arange(V) == 6, np.float32(-3), np.full((B, K + 1, V), -np.inf, np.float32))
    for q in (np.where(np.arange(V) == 6, np.float32(-1), logq), None):
        verdict = judge(certain, np.full((B, K), 6), q, np.array([3, 2, 1, 0]), rule)
        np.testing.assert_array_equal(verdict.n_accepted, [3, 2, 1, 0])
        np.testing.assert_array_equal(verdict.next_token, 6)
        verdict = judge(certain, np.full((B, K), 5), q, np.array([3, 2, 1, 0]), rule)
        np.testing.assert_array_equal(verdict.n_accepted, 0)
        np.testing.assert_array_equal(verdict.next_token, 6)


@pytest.mark.parametrize("rule", CORRECTING)
def test_an_empty_residual_falls_back_to_p(rule, monkeypatch):
    """A rejection where p and q agree to the last place can only come from rounding; it still gives a token of p."""
    monkeypatch.setattr("specjax.decoding.acceptance.correction.uniform", lambda *key: jnp.full((B, K), 1.5))
    certain = certainty(np.full((B, K + 1), 6))
    draws = {"settings": wants(SamplerConfig(1.0)), "sequence": SEQUENCE, "position": POSITION}
    verdict = accept(certain, np.full((B, K), 6), certain[:, :K], np.full(B, K), rule=rule, **draws)
    np.testing.assert_array_equal(verdict.n_accepted, 0)
    np.testing.assert_array_equal(verdict.next_token, 6)


@pytest.mark.parametrize("rule", CORRECTING)
def test_half_precision_logits_are_judged_in_float32(rule, logits, logq):
    half = logits.astype(jnp.bfloat16)
    drafts = np.argmax(logits[:, :K], axis=-1)
    n_drafted = np.array([3, 2, 3, 1])
    same(judge(half, drafts, logq, n_drafted, rule), judge(half.astype(np.float32), drafts, logq, n_drafted, rule))


@pytest.mark.parametrize("rule", RULES)
def test_verdicts_do_not_depend_on_batch_composition(rule, logits, logq):
    drafts = np.argmax(logq, axis=-1)
    n_drafted = np.array([3, 2, 3, 1])
    together = judge(logits, drafts, logq, n_drafted, rule)
    order = np.array([2, 3, 0, 1])
    permuted = judge(
        logits[order], drafts[order], logq[order], n_drafted[order], rule, WARM, SEQUENCE[order], POSITION[order]
    )
    same(permuted, jax.tree.map(lambda x: x[order], together))
    one = slice(2, 3)
    alone = judge(logits[one], drafts[one], logq[one], n_drafted[one], rule, WARM, SEQUENCE[one], POSITION[one])
    same(alone, jax.tree.map(lambda x: x[one], together))


def test_proposals_come_with_their_distribution_and_a_confidence_that_ignores_the_draw(logits):
    draws = {"settings": wants(WARM), "sequence": SEQUENCE, "position": POSITION, "ahead": np.zeros(B, int)}
    by_rule = {rule: jitted_propose(logits[:, 0], rule=rule, **draws) for rule in RULES}
    for proposal in by_rule.values():
        np.testing.assert_allclose(proposal.confidence, softmax(logits[:, 0], axis=-1).max(axis=-1), rtol=1e-6)
    same(by_rule["coupled"].token, plain(logits)[:, 0])
    assert by_rule["coupled"].logq is None
    np.testing.assert_allclose(by_rule["rejection"].logq, jitted_warp(logits, wants(WARM))[:, 0], rtol=1e-6)
    noise = gumbel(SEED, SEQUENCE, POSITION, Purpose.DRAFT, V)
    same(by_rule["rejection"].token, sample(by_rule["rejection"].logq, noise))
    jax.tree.map(same, by_rule["block"], by_rule["rejection"])  # at the start of a round


def test_a_block_takes_no_more_memory_than_rejection():
    """Nothing as large as the distributions of all places is made that rejection does not make."""
    size, where = 50_000, {"settings": wants(WARM), "sequence": SEQUENCE, "position": POSITION}
    big = (np.zeros((B, K + 1, size), np.float32), np.zeros((B, K), np.int32), np.zeros((B, K, size), np.float32))
    lowered = (jax.jit(accept, static_argnames="rule").lower(*big, POSITION, rule=rule, **where) for rule in CORRECTING)
    rejection, block = (each.compile().memory_analysis().temp_size_in_bytes for each in lowered)
    assert block < rejection + size  # bytes
