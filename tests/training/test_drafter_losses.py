"""Losses of drafters, and their gradients, against those of SpecForge's training."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafter_fixtures import FIXTURES, TOLERANCE, attached, peer
from tiny_models import relative_rms

from specjax.models.protocol import Drafter, Params
from specjax.training.drafters import eagle3
from specjax.training.drafters.base import Losses, Text
from specjax.training.drafters.dflash import block_losses
from specjax.training.recipe import Recipe

PARTS = ("draft_loss_1", "draft_loss_2", "draft_loss_3", "draft_loss_4", "cross_entropy", "distance", "confidence_loss")
PROMPT = 16
STEPS = 4


def text_for(drafter: Any) -> Text:
    """The target's text, of which the prompt is not trained on."""
    with np.load(FIXTURES / "drafter_target" / "transformers.npz") as arrays:
        tokens, logits, residual = arrays["tokens"], arrays["logits"], arrays["residual"]
    features = np.concatenate([residual[index] for index in drafter.config.target_layers], axis=-1)
    trained = jnp.arange(len(tokens))[None] >= PROMPT
    own = jnp.asarray(tokens, jnp.int32)[None]
    return Text(own, jnp.asarray(logits)[None], jnp.asarray(features)[None], trained, own)


@partial(jax.jit, static_argnums=0)
def loss_and_gradient(drafter: Drafter, params: Params, text: Text) -> tuple[Losses, jax.Array]:
    branch = "eagle3" if "eagle3" in params else "dflash"

    def loss(fc: jax.Array) -> tuple[jax.Array, Losses]:
        own: Any = {**params, branch: {**params[branch], "fc": {"weight": fc}}}
        if branch == "eagle3":
            losses = eagle3.losses(drafter, own, text, jax.random.key(0), Recipe(steps=1, mtp_steps=STEPS))
        else:
            every = jnp.arange(text.tokens.shape[1] - 1)[None]
            possible = text.trained[:, :-1] & text.trained[:, 1:]
            losses = block_losses(drafter, own, text, every, possible)
        return losses.total, losses

    return jax.grad(loss, has_aux=True)(params[branch]["fc"]["weight"])[::-1]


@pytest.mark.parametrize(
    "folder",
    [
        "eagle3/specforge",
        pytest.param("dflash/specforge", marks=pytest.mark.slow),  # the next one has windows besides
        "dflash/specforge_sliding",
        "dspark/specforge_vanilla",
        "dspark/specforge_rnn",
    ],
)
def test_losses_and_gradients_equal_specforges(folder: str) -> None:
    drafter, params = attached(folder)
    want = peer(folder, "loss")
    got, gradient = loss_and_gradient(drafter, params, text_for(drafter))
    assert relative_rms(got.total, want["loss"]) <= TOLERANCE
    if len(want["parts"]):
        parts = jnp.stack([got.parts[name] for name in PARTS if name in got.parts])
        assert relative_rms(parts, want["parts"]) <= TOLERANCE
    assert relative_rms(gradient, want["fc_gradient"]) <= 10 * TOLERANCE
