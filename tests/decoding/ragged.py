"""Ragged prompts through plain and through scripted speculative decoding."""

from __future__ import annotations

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import softmax
from scripted import CAPACITY, HEAD, Run, ScriptedMTP, ragged_prompts, run, script
from tiny_models import DENSE, MOE, make_params, relative_rms
from wants import alike

from specjax.decoding.decoder import Decoder
from specjax.decoding.random import Purpose, gumbel
from specjax.decoding.sampling import top2_margin, warp
from specjax.decoding.settings import SamplerConfig
from specjax.models.protocol import Params
from specjax.models.qwen3_5 import Qwen35Config, Qwen35Target
from specjax.state import KVCache, RollbackStrategy, SequenceState

LENGTHS = (1, 2, 5, 17, 64, 65, 130, 300)
MAX_TOKENS = 24
noise_of = jax.jit(gumbel, static_argnames="vocab_size")
WARM = SamplerConfig(temperature=0.7, top_k=20, top_p=0.95)
PROMPT_SEED = {DENSE: 3, MOE: 4}  # chosen for continuations without near-ties, see `plain`
BATCH = tuple(range(len(LENGTHS)))
REVERSED = BATCH[::-1]


def decoder(
    config: Qwen35Config, drafts: int, rollback: RollbackStrategy = "replay", sampler: SamplerConfig = WARM
) -> Decoder:
    """What decodes batches of which all rows have this sampler."""
    return Decoder(
        target=Qwen35Target(config),
        drafter=ScriptedMTP(config) if drafts else None,
        rule="greedy" if sampler.greedy else "coupled",
        max_drafts=drafts,
        rollback=rollback,
        margins=True,
    )


def prompts(config: Qwen35Config) -> list[list[int]]:
    return ragged_prompts(config, LENGTHS, PROMPT_SEED[config])


@cache
def plain(config: Qwen35Config, sampler: SamplerConfig, rows: tuple[int, ...] = BATCH) -> Run:
    """Plain decoding of some of the prompts, each with the random stream of its index.

    Tests hold part of the batch to the tokens of the whole: it is enough that the choices of the whole are clear.
    """
    chosen = [prompts(config)[row] for row in rows]
    own = decoder(config, 0, sampler=sampler)
    result = run(own, make_params(config), chosen, MAX_TOKENS, sequence=rows, sampler=sampler)
    if rows == BATCH:
        assert_clear_choices(config, sampler, chosen, result.tokens, rows)
    return result


def assert_clear_choices(
    config: Qwen35Config,
    sampler: SamplerConfig,
    chosen: list[list[int]],
    continuations: list[list[int]],
    sequence: tuple[int, ...],
) -> None:
    """No choice along these continuations is so close that equality with another program would hang on rounding."""
    longest = max(LENGTHS) + MAX_TOKENS
    tokens = np.zeros((len(chosen), longest), np.int32)
    for row, (prompt, continuation) in enumerate(zip(chosen, continuations, strict=True)):
        whole = [*prompt, *continuation]
        tokens[row, : len(whole)] = whole
    position = np.array([len(prompt) for prompt in chosen])[:, None] + np.arange(MAX_TOKENS)
    logits = np.asarray(logits_of(config, make_params(config), tokens))
    logits = np.take_along_axis(logits, position[..., None] - 1, axis=1)
    if sampler.greedy:
        assert top2_margin(logits).min() > 5e-4, "near-ties"
        return
    kept = jax.jit(warp)(logits, alike(len(chosen), sampler))
    noise = noise_of(np.uint32(0), np.array(sequence), position, Purpose.TOKEN, config.vocab_size)
    assert top2_margin(kept + noise).min() > 5e-4, "near-ties of what decides a draw: logits with noise"
    best = -np.sort(-logits / sampler.temperature)
    assert (best[..., sampler.top_k - 1] - best[..., sampler.top_k]).min() > 1e-4, "a near-tie at the edge of top-k"
    mass = np.cumsum(softmax(best[..., : sampler.top_k], axis=-1), axis=-1)
    assert np.abs(mass - sampler.top_p).min() > 1e-5, "a token at the edge of the nucleus"


@partial(jax.jit, static_argnames="config")
def logits_of(config: Qwen35Config, params: Params, tokens: jax.Array) -> jax.Array:
    """The target's logits of every position, all at once."""
    target, (batch, longest) = Qwen35Target(config), tokens.shape
    layers = target.init_layers(batch, longest, rows=1, chunk=longest, rollback="replay")
    start = SequenceState(layers, None, jnp.zeros((batch,), jnp.int32))
    output, _ = target.extend(params, tokens, jnp.full((batch,), longest), start, rows="all")
    assert output.logits is not None
    return output.logits


def correct_drafts(drafts: int, seed: int) -> np.ndarray:
    """How many drafts of a round are right, by row and by the position at which the round starts.

    Row 0 never has a right draft, row 1 has nothing else, row 2 takes what the head drafts, the others are mixed.
    """
    correct = np.random.default_rng(seed).integers(0, drafts + 1, (len(LENGTHS), CAPACITY))
    correct[0], correct[1], correct[2] = 0, drafts, HEAD
    return np.roll(correct, 3 * seed, axis=0)


def speculate(
    config: Qwen35Config,
    drafts: int,
    sampler: SamplerConfig,
    rollback: RollbackStrategy,
    rows: tuple[int, ...] = BATCH,
    seed: int = 0,
) -> Run:
    chosen = [prompts(config)[row] for row in rows]
    truth = [plain(config, sampler).tokens[row] for row in rows]
    params = script(make_params(config), chosen, truth, correct_drafts(drafts, seed)[list(rows)])
    own = decoder(config, drafts, rollback, sampler)
    return run(own, params, chosen, MAX_TOKENS, sequence=rows, sampler=sampler)


def assert_accepted_as_scripted(result: Run, drafts: int, seed: int) -> None:
    """The script was followed, and every accept count from 0 to K has come up."""
    correct, length = correct_drafts(drafts, seed), np.array(LENGTHS)
    followed = correct[:, 0] != HEAD
    for emitted, drafted, accepted in zip(
        result.rounds.n_emitted, result.rounds.n_drafted, result.rounds.n_accepted, strict=True
    ):
        want = np.minimum(correct[np.array(BATCH), length], drafted)
        counts = followed & (emitted > 0)
        np.testing.assert_array_equal(accepted[counts], want[counts])
        length = length + emitted
    assert set(result.rounds.n_accepted[result.rounds.n_drafted == drafts]) == set(range(drafts + 1))


def assert_same_committed(got: SequenceState, want: SequenceState) -> None:
    """Equality of the target's part to rounding; KV entries past the length mean nothing."""
    np.testing.assert_array_equal(got.length, want.length)
    below = np.arange(CAPACITY) < np.asarray(want.length)[:, None]
    for layer, reference in zip(got.layers, want.layers, strict=True):
        if isinstance(reference, KVCache):
            assert relative_rms(np.asarray(layer.keys)[below], np.asarray(reference.keys)[below]) < 1e-5
            assert relative_rms(np.asarray(layer.values)[below], np.asarray(reference.values)[below]) < 1e-5
        else:
            assert relative_rms(layer.matrix_state(), reference.matrix_state()) < 1e-5
            assert relative_rms(layer.conv_window(), reference.conv_window()) < 1e-5
