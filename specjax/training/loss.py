"""Next-token losses of the trunk and of the chained steps of its MTP block."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from specjax.models.protocol import FeatureRequest
from specjax.models.qwen3_5.config import Qwen35Config
from specjax.models.qwen3_5.mtp import Qwen35MTP
from specjax.models.qwen3_5.target import Qwen35Target
from specjax.state import KVCache, KVTypes, SequenceState


class Predictions(NamedTuple):
    """Teacher-forced logits; those in row p predict the token at p + 1.

    Attributes:
        trunk: [B, T, V].
        mtp: one [b, T, V] per draft step, of the first b sequences; of step j (1, 2, ...) rows p >= j mean something.
    """

    trunk: Float[Array, "B T V"]
    mtp: tuple[Float[Array, "b T V"], ...]


def predict(
    config: Qwen35Config, params: dict, tokens: Int[Array, "B T"], mtp_steps: int, mtp_sequences: int
) -> Predictions:
    """Logits of the trunk, and of `mtp_steps` chained steps of the MTP block on the first `mtp_sequences` rows.

    Step 1 pairs the token at p with the trunk's hidden row of p - 1; step j with the hidden row of step j - 1, as in
    drafting. The block's loss reaches the trunk through the hidden rows only: the embedding table and the output head
    that the block shares are constants to it.
    """
    batch, length = tokens.shape
    zero = jnp.zeros((batch,), jnp.int32)
    target, block = Qwen35Target(config), Qwen35MTP(config)
    state = SequenceState(target.init_layers(batch, length, rows=1, chunk=length, rollback="replay"), None, zero)
    output, _ = target.extend(
        params, tokens, zero + length, state, request=FeatureRequest(final_hidden=True), rows="all"
    )
    assert output.logits is not None
    if not mtp_steps:
        return Predictions(output.logits, ())
    assert output.features.final_hidden is not None
    shared = {"target": jax.lax.stop_gradient(params["target"]), "mtp": params["mtp"]}
    tokens, hidden = tokens[:mtp_sequences], output.features.final_hidden[:mtp_sequences]
    positions = jnp.broadcast_to(jnp.arange(length), tokens.shape)
    valid = jnp.ones_like(tokens, bool)
    logits = []
    for _ in range(mtp_steps):
        before = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
        cache = KVCache.zeros(tokens.shape[0], length, config.num_kv_heads, config.head_width, KVTypes())
        hidden, _ = block.run(shared, tokens, before, positions, valid, cache)
        logits.append(block.logits(shared, hidden))
    return Predictions(output.logits, tuple(logits))


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
    config: Qwen35Config, params: dict, tokens: Int[Array, "B T"], *, mtp_steps: int, mtp_sequences: int
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Mean distillation loss of the draft steps, with the trunk as a constant, and the parts by name for the log."""
    frozen = {**params, "target": jax.lax.stop_gradient(params["target"])}
    predictions = predict(config, frozen, tokens, mtp_steps, mtp_sequences)
    losses = distillation_losses(predictions, tokens.shape[1])
    trunk, *mtp = cross_entropies(predictions, tokens)
    parts = {"loss": trunk, **{f"mtp_loss_{j}": loss for j, loss in enumerate(mtp, 1)}}
    return sum(losses[1:], losses[0]) / len(losses), parts


def training_loss(
    config: Qwen35Config,
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
    total = trunk + mtp_weight * sum(mtp) / len(mtp) if mtp else trunk
    parts = {"loss": trunk, **{f"mtp_loss_{j}": loss for j, loss in enumerate(mtp, 1)}}
    return total, parts
