"""Training of DFlash and DSpark drafters on blocks of masks, as SpecForge does it.

Blocks begin at anchors, positions of the text that are drawn at random. A block knows the features of all positions
before its anchor, and the anchor's token. DFlash learns the right token of each slot by cross entropy, and earlier
slots weigh more. DSpark learns besides to be near the target's distribution, which is what acceptance asks for, and its
confidence head the share of drafts that would be accepted; its Markov head is told the true token before each slot.

Source: `algorithms/common/dflash_family_model.py` of SpecForge 0.2.0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from specjax.models.drafters.dflash import DFlashConfig, DFlashDrafter, MarkovHead, init_params
from specjax.models.drafters.dflash.modules import DFlash
from specjax.models.drafters.fit import usual_layers
from specjax.models.parts.apply import apply
from specjax.models.protocol import Params, Target
from specjax.state import KVTypes
from specjax.training.drafters.base import DrafterKind, Losses, Size, Text, agree, head_sizes
from specjax.training.recipe import Recipe

DECAY = 4.0
"""The weight of a slot falls to 1/e over so many slots."""
ENTROPY, DISTANCE, CONFIDENCE = 0.1, 0.9, 1.0
"""Weights of DSpark's three losses."""
ROWS_PER_ANCHOR = 16
"""One anchor is drawn for so many tokens of a text."""
MARKOV_RANK = 64


def config(target: Target, size: Size) -> DFlashConfig:
    """Layers without windows, of the target's width; embedding table and output head are the target's."""
    sizes = head_sizes(target.width)
    return DFlashConfig(
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size if size.tokens is None else len(size.tokens),
        block_size=size.block,
        mask_token=size.mask_token,
        target_layers=usual_layers(target.num_layers),
        **sizes,
        rope_width=sizes["head_width"],
        windows=(None,) * size.layers,
        causal=(False,) * size.layers,
        context_length=target.context_length,
        own_output=size.tokens is not None,
        maps_tokens=size.tokens is not None,
    )


def spark_config(target: Target, size: Size) -> DFlashConfig:
    """The same with a Markov head and a confidence head, and drafts from the first slot on."""
    return replace(config(target, size), from_anchor=True, markov=MarkovHead(MARKOV_RANK), confidence="both")


def losses(drafter: DFlashDrafter, params: Params, text: Text, key: Array, recipe: Recipe) -> Losses:
    """The losses of blocks at random anchors; slots of each block are as many as it has."""
    del recipe
    length = text.tokens.shape[1]
    possible = text.trained[:, :-1] & text.trained[:, 1:]
    chance = jnp.where(possible, jax.random.uniform(key, possible.shape), 2)
    anchors = jnp.argsort(chance, axis=1)[:, : max(1, length // ROWS_PER_ANCHOR)]
    return block_losses(drafter, params, text, anchors, jnp.take_along_axis(possible, anchors, axis=1))


def block_losses(
    drafter: DFlashDrafter, params: Params, text: Text, anchors: Int[Array, "B anchors"], kept: Bool[Array, "B anchors"]
) -> Losses:
    """The losses of blocks at these anchors, of which some are kept."""
    c, length = drafter.config, text.tokens.shape[1]
    hidden = _blocks(drafter, params, text, anchors)
    if not c.from_anchor:
        hidden = hidden[:, :, 1:]
    slots = jnp.arange(c.num_drafts)
    at = anchors[..., None] + 1 + slots
    place = jnp.minimum(at, length - 1)
    trained = _of(text.trained, place) & (at < length) & kept[..., None]
    labels, tokens = _of(text.labels, place), params["dflash"].get("tokens")
    if tokens is not None:
        index = jnp.minimum(jnp.searchsorted(tokens, labels), len(tokens) - 1)
        trained, labels = trained & (tokens[index] == labels), index
    teacher = _of(text.logits, place - 1)
    logits, confidence = _corrected(drafter, params, hidden, _of(text.tokens, place - 1))
    if c.markov is not None:
        trained = jnp.cumprod(trained.astype(jnp.int32), axis=-1) > 0
    weights = trained * jnp.exp(-slots / DECAY)

    def mean(values: Float[Array, "B anchors K"]) -> Float[Array, ""]:
        return jnp.sum(values * weights) / jnp.maximum(jnp.sum(weights), 1e-6)

    entropies = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    agreeing = agree(logits, teacher, tokens)
    agreement = jnp.sum(agreeing * trained, axis=(0, 1)) / jnp.maximum(jnp.sum(trained, axis=(0, 1)), 1)
    parts = {"cross_entropy": mean(entropies)}
    total = parts["cross_entropy"]
    if c.markov is not None:
        p = jax.nn.softmax(teacher, axis=-1)
        p = p if tokens is None else p[..., tokens]
        distance = jnp.sum(jnp.abs(jax.nn.softmax(logits, axis=-1) - p), axis=-1)
        parts["distance"] = mean(distance)
        total = ENTROPY * total + DISTANCE * parts["distance"]
        if confidence is not None:
            accepted = jax.lax.stop_gradient(jnp.clip(1 - distance / 2, 0, 1))
            parts["confidence_loss"] = mean(optax.sigmoid_binary_cross_entropy(confidence, accepted))
            total += CONFIDENCE * parts["confidence_loss"]
    return Losses(total, parts, agreement)


def _of(rows: Array, place: Int[Array, "B anchors K"]) -> Array:
    """Rows [B, T, ...] of a text at places [B, anchors, K]."""
    return jax.vmap(lambda of_text, at: of_text[at])(rows, place)


def _blocks(
    drafter: DFlashDrafter, params: Params, text: Text, anchors: Int[Array, "B anchors"]
) -> Float[Array, "B anchors S D"]:
    """The hidden states of the slots of all blocks.

    The caches of a text serve each of its blocks: a block sees the context up to its own position alone.
    """
    batch, length = text.tokens.shape
    count = anchors.shape[1]
    state = drafter.init_state(batch, length, rows=1, chunk=length, kv_types=KVTypes())
    zero = jnp.zeros((batch,), jnp.int32)
    kv = drafter.inject(params, state.then(text.features, zero + length, zero), state.kv)
    kv = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), kv)
    pending = jnp.take_along_axis(text.tokens, anchors, axis=1).reshape(-1)
    hidden, _ = drafter.block(params, pending, anchors.reshape(-1), kv, drafter.config.num_drafts)
    return hidden.reshape(batch, count, *hidden.shape[1:])


def _corrected(
    drafter: DFlashDrafter, params: Params, hidden: Float[Array, "B anchors K D"], before: Int[Array, "B anchors K"]
) -> tuple[Float[Array, "B anchors K M"], Float[Array, "B anchors K"] | None]:
    """The logits of all slots, and the logits of the confidence head, given the true token before each slot."""
    c, logits = drafter.config, drafter.scores(params, hidden)
    if c.markov is None:
        return logits, None

    def run(method: str, *args: Any) -> Any:
        return apply(DFlash(c), params["dflash"], *args, method=method)

    flat, tokens = hidden.reshape(-1, *hidden.shape[2:]), before.reshape(-1, before.shape[-1])
    memory, corrections, sure = run("begin", len(flat)), [], []
    for slot in range(flat.shape[1]):
        correction, embedding, memory = run("correct", tokens[:, slot], flat[:, slot], memory)
        corrections.append(correction)
        if c.confidence is not None:
            sure.append(run("sureness", flat[:, slot], embedding if c.confidence == "both" else None))
    logits += jnp.stack(corrections, axis=1).reshape(logits.shape)
    return logits, jnp.stack(sure, axis=1).reshape(before.shape) if sure else None


def _kind(name: str, description: str, make_config: Any) -> DrafterKind:
    return DrafterKind(
        name=name,
        description=description,
        branch="dflash",
        layers=2,
        config=make_config,
        initial=init_params,
        attach=lambda config, target: DFlashDrafter(target, config),
        losses=losses,
        drafts=lambda config, recipe: config.num_drafts,
    )


KINDS = (_kind("dflash", "DFlash drafter", config), _kind("dspark", "DSpark drafter", spark_config))
