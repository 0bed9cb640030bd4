"""Rows of one batch have settings of their own, and draw what they would draw in any other company.

`sampled_tokens.json` was recorded when settings were compiled in and held for a whole batch.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from wants import GREEDY

from specjax.decoding.acceptance import Rule, accept, propose_token
from specjax.decoding.sampling import FIRST_LOOK, SHORTLIST, sample_tokens, warp, with_shortlist
from specjax.decoding.settings import DraftConfig, Room, RowSettings, SamplerConfig, Settings

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "sampled_tokens.json").read_text())
SAMPLERS = [SamplerConfig(**case["sampler"]) for case in RECORDED]
BATCH, DRAFTS, VOCAB = 4, 3, 3001
SCALE = np.array([0.3, 2, 4, 8], np.float32)[:, None, None]  # from flat to peaked: nuclei of any size
SEQUENCE, POSITION = np.array([3, 0, 11, 7], np.int32), np.array([5, 900, 0, 17], np.int32)
SEED = 2**31 + 5


def logits() -> tuple[np.ndarray, np.ndarray]:
    """Those of the target [B, K + 1, V] and those of the drafter [B, K, V], as they were for the record."""
    rng = np.random.default_rng(20)
    target = SCALE * rng.standard_normal((BATCH, DRAFTS + 1, VOCAB), np.float32)
    other = SCALE * rng.standard_normal((BATCH, DRAFTS, VOCAB), np.float32)
    return target, np.float32(0.8) * target[:, :DRAFTS] + np.float32(0.4) * other


def settings_of(samplers: list[SamplerConfig]) -> RowSettings:
    return RowSettings.of([Settings(sampler, seed=SEED) for sampler in samplers])


@jax.jit
def plain(target: jax.Array, settings: RowSettings, sequence: jax.Array, position: jax.Array) -> jax.Array:
    places = position[:, None] + jnp.arange(DRAFTS + 1)
    return sample_tokens(target, settings=settings, sequence=sequence, position=places)


@partial(jax.jit, static_argnames="rule")
def speculate(rule: Rule, target: jax.Array, drafter: jax.Array, n_drafted: jax.Array, **rows: Any) -> Any:
    position = rows.pop("position")

    def choice(i: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        made = propose_token(drafter[:, i], rule=rule, position=position + i, **rows)
        return made.token, made.logq

    drafts, logq = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), jax.lax.map(choice, jnp.arange(DRAFTS)))
    return drafts, accept(target, drafts, logq, n_drafted, rule=rule, position=position, **rows).tokens


def run(samplers: list[SamplerConfig], rows: np.ndarray) -> dict[str, Any]:
    """What these rows of the record draw in one batch, each with its own settings."""
    target, drafter = (x[rows] for x in logits())
    where = {"settings": settings_of(samplers), "sequence": SEQUENCE[rows], "position": POSITION[rows]}
    n_drafted = np.array([3, 3, 2, 3], np.int32)[rows]
    result: dict[str, Any] = {"plain": plain(target, **where)}
    for rule in ("rejection", "coupled"):
        drafts, tokens = speculate(rule, target, drafter, n_drafted, **where)
        result[rule] = {"drafts": drafts, "tokens": tokens}
    return result


def assert_drawn(got: dict[str, Any], recorded: list[tuple[int, int]]) -> None:
    """Every row drew what was recorded of (case, row)."""
    for index, (case, row) in enumerate(recorded):
        np.testing.assert_array_equal(got["plain"][index], RECORDED[case]["plain"][row])
        for rule in ("rejection", "coupled"):
            for name in ("drafts", "tokens"):
                np.testing.assert_array_equal(got[rule][name][index], RECORDED[case][rule][name][row])


@pytest.mark.parametrize("case", range(len(RECORDED)), ids=[json.dumps(case["sampler"]) for case in RECORDED])
def test_a_seed_draws_what_it_drew_when_settings_were_compiled_in(case: int) -> None:
    before = plain._cache_size(), speculate._cache_size()
    got = run([SAMPLERS[case]] * BATCH, np.arange(BATCH))
    assert_drawn(got, [(case, row) for row in range(BATCH)])
    assert plain._cache_size() - before[0] <= 1
    if before[0]:
        assert (plain._cache_size(), speculate._cache_size()) == before, "other settings are the same program"


def test_rows_beside_rows_with_other_settings_draw_the_same() -> None:
    """All settings come up in every row, in batches of rows with different ones."""
    before = plain._cache_size(), speculate._cache_size()
    for first in range(len(SAMPLERS)):
        cases, rows = (first + np.array([0, 1, 3, 4])) % len(SAMPLERS), np.roll(np.arange(BATCH), first)
        assert len(set(cases)) == BATCH
        assert_drawn(run([SAMPLERS[case] for case in cases], rows), list(zip(cases, rows, strict=True)))
    assert plain._cache_size() - before[0] <= 1
    assert speculate._cache_size() - before[1] <= 2, "mixed settings are the same program"


def test_distributions_do_not_depend_on_the_rows_beside() -> None:
    """To the last bit: a row whose few tokens are listed, and one whose neighbour needs the whole vocabulary."""
    target = jnp.asarray(logits()[0][2:3, 0])  # one row
    warped = jax.jit(warp)
    everything = SamplerConfig(1.0)
    looks = [SamplerConfig(1.0, top_k=k) for k in (5, FIRST_LOOK + 1)]  # how far the list reaches
    for sampler in SAMPLERS:
        alone = warped(jnp.repeat(target, 2, axis=0), settings_of([sampler, sampler]))
        for neighbour in (everything, GREEDY, SamplerConfig(1.0, top_k=2000, top_p=0.99), *looks):
            beside = warped(jnp.repeat(target, 2, axis=0), settings_of([sampler, neighbour]))
            np.testing.assert_array_equal(beside[0], alone[0], err_msg=f"{sampler} beside {neighbour}")


sizes: list[int] = []


@jax.jit
def any_positive(target: jax.Array, settings: RowSettings) -> jax.Array:
    """Puts down in `sizes` how many tokens it was given to look at."""

    def report(candidates: Any) -> jax.Array:
        jax.debug.callback(sizes.append, jnp.int32(candidates.tokens.shape[-1]))
        return jnp.any(candidates.scores > 0)

    return with_shortlist(target, settings, report)


@pytest.mark.parametrize(
    ("sampler", "length"),
    [
        (SamplerConfig(4.0, top_k=SHORTLIST), SHORTLIST),
        (SamplerConfig(4.0, top_k=SHORTLIST + 1), VOCAB),
        (SamplerConfig(4.0, top_p=0.5), SHORTLIST),
        (SamplerConfig(4.0, top_p=0.99), VOCAB),
        (SamplerConfig(4.0, min_p=0.1), SHORTLIST),
        (SamplerConfig(4.0, min_p=0.01), VOCAB),
        (SamplerConfig(4.0, top_k=2000, min_p=0.5), SHORTLIST),
        (SamplerConfig(4.0), VOCAB),
    ],
    ids=str,
)
def test_noise_is_made_for_few_tokens_where_few_are_kept(sampler: SamplerConfig, length: int) -> None:
    """Seen by what the way that is taken calls: the number of tokens whose noise it would make."""
    sizes.clear()
    jax.block_until_ready(any_positive(np.repeat(logits()[0][2:3, 0], 2, axis=0), settings_of([sampler, GREEDY])))
    jax.effects_barrier()
    assert [int(size) for size in sizes] == [length]


def test_seeds_of_one_batch_are_those_of_its_rows() -> None:
    target = jnp.asarray(np.repeat(logits()[0][:1, 0], 4, axis=0))
    same = jnp.zeros(4, jnp.int32)
    draw = partial(sample_tokens, target, sequence=same, position=same)
    seeds = [0, 1, 2**31, 2**32 - 1]
    together = draw(settings=RowSettings.of([Settings(SAMPLERS[1], seed=seed) for seed in seeds]))
    assert len(set(together.tolist())) == 4
    for row, seed in enumerate(seeds):
        assert draw(settings=RowSettings.of([Settings(SAMPLERS[1], seed=seed)] * 4))[row] == together[row]


@pytest.mark.parametrize(
    ("wants", "message"),
    [({"seed": -1}, "seed is -1"), ({"seed": 2**32}, "seed is 4294967296"), ({"stop_tokens": (3, -1)}, "at least 0")],
)
def test_settings_out_of_range_are_refused(wants: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wants)


def test_stop_tokens_are_padded_to_few_widths() -> None:
    widths = [RowSettings.of([Settings(stop_tokens=tuple(range(n)))]).stop_tokens.shape[1] for n in (0, 1, 4, 5, 300)]
    assert widths == [4, 4, 4, 16, 1024]
    rows = RowSettings.of([Settings(stop_tokens=(7,)), Settings()])
    np.testing.assert_array_equal(rows.stop_at(jnp.array([[7, 0], [7, 0]])), [[True, False], [False, False]])
    with pytest.raises(ValueError, match="5 stop tokens, but there is room for 4"):
        RowSettings.of([Settings(stop_tokens=tuple(range(5)))], room=Room(4, leaning=False))


def test_every_setting_is_an_entry_of_its_row() -> None:
    some = Settings(SamplerConfig(0.5, 3, 0.9, 0.1), DraftConfig(2, 1, 0.25, 4), 2**32 - 1, (5, 6))
    other = Settings()
    both, alone = RowSettings.of([other, some]), RowSettings.of([some])
    jax.tree.map(lambda two, one: np.testing.assert_array_equal(two[1], one[0]), both, alone)
    assert both.seed.dtype == jnp.uint32
    np.testing.assert_array_equal(both.draws, [False, True])
    assert both.min_score[0] == -np.inf
