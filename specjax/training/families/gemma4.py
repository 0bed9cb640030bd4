"""Training Gemma 4: a target and the assistant that reads its caches, together or the assistant alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey
from jaxtyping import Array, Float, Int, PRNGKeyArray

from specjax.models.gemma4 import (
    AttentionConfig,
    CentroidHead,
    Gemma4AssistantConfig,
    Gemma4Config,
    Gemma4Target,
    check_fit,
    init_assistant,
    init_params,
    interleaved_layer_types,
)
from specjax.models.gemma4.drafter import AssistantBlock
from specjax.models.parts.apply import apply
from specjax.models.protocol import Params
from specjax.training.families.base import Family, ModelFile, Predictions, delayed, run_trunk
from specjax.training.recipe import Recipe

BRANCH_NORMS = {DictKey("post_attn_norm"), DictKey("post_mlp_norm"), DictKey("post_per_layer_norm")}
"""Norms whose output is added to the residual stream."""


@dataclass(frozen=True)
class Gemma4Pair:
    """A target and its assistant; they are trained in one run and written to two files."""

    target: Gemma4Config
    assistant: Gemma4AssistantConfig

    def __post_init__(self) -> None:
        check_fit(self.target, self.assistant)

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def mtp_layers(self) -> int:
        """How many layers the assistant has."""
        return self.assistant.mtp_layers


def demo_config(vocab_size: int = 512) -> Gemma4Pair:
    """About 0.6 M parameters in a target of four layers, 0.16 M in an assistant of two with a centroid head."""
    sliding = AttentionConfig(num_kv_heads=2, head_width=32, rope_theta=10_000.0, rope_width=32, window=24)
    full = AttentionConfig(num_kv_heads=1, head_width=64, rope_theta=100_000.0, rope_width=16)
    layer_types = interleaved_layer_types(4, interval=2)
    target = Gemma4Config(
        vocab_size=vocab_size,
        width=128,
        layer_types=layer_types,
        num_heads=4,
        mlp_width=192,
        sliding=sliding,
        full=full,
        full_value_is_key=True,
        context_length=1024,
    )
    assistant = Gemma4AssistantConfig(
        vocab_size=vocab_size,
        target_width=target.width,
        width=64,
        layer_types=layer_types[:2],
        num_heads=4,
        mlp_width=128,
        sliding=sliding,
        full=full,
        centroids=CentroidHead(num_centroids=32, selected=8),
        context_length=1024,
    )
    return Gemma4Pair(target, assistant)


def initial(config: Gemma4Pair, key: PRNGKeyArray) -> Params:
    """Random parameters to begin with.

    Branches are normed on their way out, so it is these norms that keep the stream's variance from growing with L; and
    as scores are not scaled, the norm of the queries begins where it makes up for that.
    """
    target_key, assistant_key = jax.random.split(key)
    target = _begin(init_params(config.target, target_key), config.target.num_layers)
    assistant = _begin(init_assistant(config.assistant, assistant_key), config.assistant.mtp_layers)
    return {**target, **assistant}


def _begin(params: Params, num_layers: int) -> Params:
    def scaled(path: tuple, value: Array) -> Array:
        if BRANCH_NORMS.intersection(path):
            return value / math.sqrt(2 * num_layers)
        return value / math.sqrt(value.shape[0]) if DictKey("q_norm") in path else value

    return jax.tree_util.tree_map_with_path(scaled, params)


def fixed(config: Gemma4Pair) -> Params:
    """The order in which a centroid head cuts the vocabulary into groups: that of the token ids."""
    if config.assistant.centroids is None:
        return {}
    return {"mtp": {"centroids": {"token_ordering": jnp.arange(config.vocab_size, dtype=jnp.int32)}}}


def predict(
    config: Gemma4Pair, params: Params, tokens: Int[Array, "B T"], mtp_steps: int, mtp_sequences: int
) -> Predictions:
    """Logits of the target, and of `mtp_steps` steps of the assistant on the first `mtp_sequences` rows.

    All positions are the pending one of a round at once: for position p, step j takes the token at p + j - 1 and the
    hidden state of step j - 1 for p (the target's hidden row of p - 1 at first), and reads the caches up to p - 1.

    A centroid head is trained on the logits of all tokens, and its centroids to find the groups that hold the target's
    probability mass.
    """
    trunk = run_trunk(Gemma4Target(config.target), params, tokens)
    if not mtp_steps:
        return Predictions(trunk.logits, ())
    own, block = params["mtp"], AssistantBlock(config.assistant)
    embedding = jax.lax.stop_gradient(params["target"])
    tokens, hidden = tokens[:mtp_sequences], delayed(trunk.hidden[:mtp_sequences])
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    layers = jax.tree.map(lambda x: x[:mtp_sequences], trunk.state.layers)
    caches = tuple(layers[config.target.last_cache(kind)] for kind in config.assistant.layer_types)
    logits, routing = [], []
    for step in range(1, mtp_steps + 1):
        fed = jnp.roll(tokens, 1 - step, axis=1)  # the last rows come round; what they predict lies past the text
        embedded = Gemma4Target(config.target).embed({"target": embedding}, fed)
        pair = jnp.concatenate([embedded, hidden], axis=-1)
        normed, hidden = apply(block, own, pair, positions, caches)
        predicts = delayed(normed, by=step - 1)
        logits.append(apply(block, own, predicts, method="logits"))
        if config.assistant.centroids is not None:
            fit = apply(block, own, predicts, method="centroid_fit")
            ordering = own["centroids"]["token_ordering"]
            routing.append(routing_loss(fit, ordering, trunk.logits[:mtp_sequences], step))
    return Predictions(trunk.logits, tuple(logits), sum(routing, jnp.zeros(())) / mtp_steps)


def routing_loss(
    fit: Float[Array, "b T centroids"],
    ordering: Int[Array, "V"],
    trunk_logits: Float[Array, "b T V"],
    step: int,
) -> Float[Array, ""]:
    """Mean cross entropy in nats of a softmax over the centroids under the trunk's probabilities of their groups."""
    teacher = jax.nn.softmax(jax.lax.stop_gradient(trunk_logits), axis=-1)
    of_group = jnp.sum(teacher[..., ordering].reshape(*fit.shape, -1), axis=-1)
    losses = -jnp.sum(of_group * jax.nn.log_softmax(fit, axis=-1), axis=-1)
    return jnp.mean(losses[:, step:])


def files(config: Gemma4Pair, params: Params) -> tuple[ModelFile, ...]:
    """The target, and the assistant beside it."""
    return (
        ModelFile("", config.target, {"target": params["target"]}),
        ModelFile("-assistant", config.assistant, {"mtp": params["mtp"]}),
    )


FAMILY = Family(
    name="gemma4",
    description="Gemma-4-style model with an assistant that drafts for it, trained on the Python standard library",
    config_type=Gemma4Pair,
    demo_config=demo_config(),
    recipe=Recipe(steps=800, batch_size=4, length=320, mtp_sequences=2),
    initial=initial,
    predict=predict,
    fixed=fixed,
    files=files,
)
