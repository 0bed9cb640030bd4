"""Next-token losses of the trunk and of the draft steps of its drafter."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from specjax.training.families.base import Predictions, TrainingConfig
from specjax.training.families.registry import family_of


def predict(
    config: TrainingConfig, params: dict, tokens: Int[Array, "B T"], mtp_steps: int, mtp_sequences: int
) -> Predictions:
    """Logits of the trunk, and of `mtp_steps` draft steps on the first `mtp_sequences` rows, as the family drafts."""
    return family_of(config).predict(config, params, tokens, mtp_steps, mtp_sequences)


def meaningful(length: int, step: int) -> Bool[Array, " T-1"]:
    """Which of the rows 0 .. T - 2 of a draft step (the trunk is step 0) are real predictions."""
    return jnp.arange(length - 1) >= step


def cross_entropies(predictions: Predictions, tokens: Int[Array, "B T"]) -> tuple[Float[Array, ""], ...]:
    """Mean next-token cross entropy in nats: of the trunk, then of each draft step."""

    def mean(step: int, logits: Float[Array, "b T V"]) -> Float[Array, ""]:
        labels = tokens[: logits.shape[0], 1:]
        losses = optax.softmax_cross_entropy_with_integer_labels(logits[:, :-1], labels)
        return jnp.mean(losses, where=meaningful(tokens.shape[1], step))

    return tuple(mean(step, logits) for step, logits in enumerate((predictions.trunk, *predictions.mtp)))


def distillation_losses(predictions: Predictions, length: int) -> tuple[Float[Array, ""], ...]:
    """Per draft step, the mean cross entropy in nats of its distribution under the trunk's.

    Source: Hinton et al., "Distilling the Knowledge in a Neural Network", arXiv 1503.02531.
    """
    teacher = jax.nn.softmax(jax.lax.stop_gradient(predictions.trunk), axis=-1)

    def mean(step: int, logits: Float[Array, "b T V"]) -> Float[Array, ""]:
        losses = optax.softmax_cross_entropy(logits[:, :-1], teacher[: logits.shape[0], :-1])
        return jnp.mean(losses, where=meaningful(length, step))

    return tuple(mean(step, logits) for step, logits in enumerate(predictions.mtp, 1))


def agreements(predictions: Predictions) -> tuple[Float[Array, ""], ...]:
    """Per draft step, how often its most likely token is the trunk's."""
    choice = jnp.argmax(predictions.trunk, axis=-1)

    def mean(step: int, logits: Float[Array, "b T V"]) -> Float[Array, ""]:
        same = jnp.argmax(logits, axis=-1) == choice[: logits.shape[0]]
        return jnp.mean(same[:, :-1], where=meaningful(same.shape[1], step))

    return tuple(mean(step, logits) for step, logits in enumerate(predictions.mtp, 1))


def head_loss(
    config: TrainingConfig, params: dict, tokens: Int[Array, "B T"], *, mtp_steps: int, mtp_sequences: int
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Mean distillation loss of the draft steps, with the trunk as a constant, and the parts by name for the log."""
    frozen = {**params, "target": jax.lax.stop_gradient(params["target"])}
    predictions = predict(config, frozen, tokens, mtp_steps, mtp_sequences)
    losses = distillation_losses(predictions, tokens.shape[1])
    trunk, *mtp = cross_entropies(predictions, tokens)
    parts = {"loss": trunk, **{f"mtp_loss_{j}": loss for j, loss in enumerate(mtp, 1)}}
    return sum(losses[1:], losses[0]) / len(losses) + predictions.routing, parts


def training_loss(
    config: TrainingConfig,
    params: dict,
    tokens: Int[Array, "B T"],
    *,
    mtp_steps: int,
    mtp_sequences: int,
    mtp_weight: float,
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Trunk loss + `mtp_weight` * mean loss of the draft steps, and the parts by name for the log."""
    predictions = predict(config, params, tokens, mtp_steps, mtp_sequences)
    trunk, *mtp = cross_entropies(predictions, tokens)
    total = trunk + mtp_weight * (sum(mtp) / len(mtp) + predictions.routing) if mtp else trunk
    parts = {"loss": trunk, **{f"mtp_loss_{j}": loss for j, loss in enumerate(mtp, 1)}}
    return total, parts
