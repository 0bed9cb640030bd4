"""Rows with rules of their own: what each is told is what the program of its rule tells it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax.decoding.acceptance import RULES, accept, propose_token
from specjax.decoding.settings import RowSettings, SamplerConfig, Settings

V, K = 12, 2
ROWS = [
    Settings(SamplerConfig(temperature), seed=seed, rule=rule)
    for seed, (rule, temperature) in enumerate((rule, t) for rule in RULES for t in (0.0, 0.7, 1.0, 1.3))
]
B = len(ROWS)


def test_each_row_gets_the_drafts_and_the_verdict_of_its_rule() -> None:
    rng = np.random.default_rng(0)
    target, drafter = (jnp.asarray(2 * rng.normal(size=(B, rows, V)), jnp.float32) for rows in (K + 1, K))
    drafts = jnp.asarray(rng.integers(0, V, (B, K)), jnp.int32)
    n_drafted = jnp.asarray(rng.integers(0, K + 1, B), jnp.int32)
    row = jnp.arange(B, dtype=jnp.int32)
    where: dict[str, Any] = {"settings": RowSettings.of(ROWS), "sequence": row, "position": row + 9}

    @jax.jit
    def outcomes() -> dict[str, Any]:
        logq = jax.nn.log_softmax(drafter)
        return {
            rule: (
                propose_token(drafter[:, 0], rule=rule, ahead=row % K, **where).token,
                *accept(target, drafts, logq, n_drafted, rule=rule, **where),
            )
            for rule in ("each", *RULES)
        }

    found = jax.device_get(outcomes())
    for index, wants in enumerate(ROWS):
        for got, expected in zip(found["each"], found[wants.rule], strict=True):
            np.testing.assert_array_equal(got[index], expected[index])
    for rule in RULES:
        assert any((a != b).any() for a, b in zip(found["each"], found[rule], strict=True))
