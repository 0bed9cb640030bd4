"""Rows with rules of their own: what each is told is what the program of its rule tells it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax.decoding.acceptance import RULES, accept, propose_token
from specjax.decoding.settings import RowSettings, SamplerConfig, Settings

V, K = 24, 3
ROWS = [
    Settings(SamplerConfig(temperature, top_k=top_k), seed=seed, rule=rule)
    for seed, (rule, temperature, top_k) in enumerate(
        [(rule, temperature, top_k) for rule in RULES for temperature in (0.0, 0.7, 1.3) for top_k in (0, 5)]
    )
]
B = len(ROWS)


@pytest.mark.parametrize("drafted", [True, False])
def test_each_row_gets_the_verdict_of_its_rule(drafted: bool) -> None:
    rng = np.random.default_rng(0)
    target = jnp.asarray(rng.normal(size=(B, K + 1, V)) * 2, jnp.float32)
    drafter = target[:, :K] + jnp.asarray(rng.normal(size=(B, K, V)), jnp.float32)
    settings, sequence = RowSettings.of(ROWS), jnp.arange(B, dtype=jnp.int32)
    position = jnp.full((B,), 9, jnp.int32)

    @jax.jit
    def both() -> tuple:
        outcomes = []
        for rule in ("each", *RULES):
            choices = [
                propose_token(
                    drafter[:, ahead],
                    rule=rule,
                    settings=settings,
                    sequence=sequence,
                    position=position + ahead,
                    ahead=jnp.full((B,), ahead, jnp.int32),
                )
                for ahead in range(K)
            ]
            tokens = jnp.stack([choice.token for choice in choices], axis=1)
            logq = None
            if drafted and choices[0].logq is not None:
                logq = jnp.stack([choice.logq for choice in choices], axis=1)
            n_drafted = jnp.arange(B, dtype=jnp.int32) % (K + 1)
            verdict = accept(
                target,
                tokens,
                logq,
                n_drafted,
                rule=rule,
                settings=settings,
                sequence=sequence,
                position=position,
            )
            outcomes.append((tokens, *verdict))
        return tuple(outcomes)

    mixed, *single = jax.device_get(both())
    for row, wants in enumerate(ROWS):
        for got, expected in zip(mixed, single[RULES.index(wants.rule)], strict=True):
            np.testing.assert_array_equal(got[row], expected[row])
    assert len({tuple(tokens) for tokens in mixed[3].tolist()}) > K
