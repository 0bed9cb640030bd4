"""Draws are the same however the logits lie on devices."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from wants import alike

from specjax.decoding.sampling import sample_tokens
from specjax.decoding.settings import SamplerConfig

pytestmark = pytest.mark.mesh


def test_draws_do_not_depend_on_how_logits_are_sharded() -> None:
    logits = 3 * np.random.default_rng(1).standard_normal((4, 4, 64), np.float32)
    wants = alike(4, SamplerConfig(0.9, top_k=20, top_p=0.95), seed=7)
    place = {"sequence": np.arange(4), "position": np.ones((4, 4), int)}
    draw = jax.jit(lambda logits: sample_tokens(logits, settings=wants, **place))
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    whole = np.asarray(draw(logits))
    assert len(set(map(tuple, whole))) == 4
    for spec in PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec(None, None, "x"):
        placed = jax.device_put(logits, NamedSharding(mesh, spec))
        np.testing.assert_array_equal(draw(placed), whole, err_msg=str(spec))
