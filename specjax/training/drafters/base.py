"""What training asks of a kind of drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from specjax.models.protocol import Drafter, Params, Target
from specjax.training.recipe import Recipe


class Text(NamedTuple):
    """A batch of texts, and what the target makes of them.

    Attributes:
        tokens: [B, T].
        logits: row t is about the token at t + 1.
        features: the inputs of the layers that the drafter reads, one behind the other.
        trained: which tokens are trained on.
        labels: what counts as the token at each position where drafts have one right answer: the text's own tokens,
            or what the target says after the true text.
    """

    tokens: Int[Array, "B T"]
    logits: Float[Array, "B T V"]
    features: Float[Array, "B T features"]
    trained: Bool[Array, "B T"]
    labels: Int[Array, "B T"]


class Losses(NamedTuple):
    """What a batch comes to.

    Attributes:
        total: what is made small.
        parts: what the log shows besides, by name.
        agreement: [K], of the j-th draft after a true text: how often it is the target's choice.
    """

    total: Float[Array, ""]
    parts: dict[str, Float[Array, ""]]
    agreement: Float[Array, "K"]


@dataclass(frozen=True)
class Size:
    """How large a drafter is made, and what it drafts.

    Attributes:
        layers: of the drafter.
        tokens: the target's tokens that it can draft, in rising order; None for all.
        block: slots of a block, for drafters that fill blocks.
        mask_token: stands in slots that are to be filled.
    """

    layers: int
    tokens: tuple[int, ...] | None
    block: int
    mask_token: int


LossFunction = Callable[[Any, Params, Text, Array, Recipe], Losses]


@dataclass(frozen=True)
class DrafterKind:
    """How one kind of drafter is trained.

    Attributes:
        name: on the command line.
        description: of an exported file.
        branch: of the parameter tree, in which a drafter's own are.
        layers: of a drafter by default.
        config: (target, size) -> the config of a drafter for it.
        initial: (config, key) -> random parameters.
        attach: (config, target) -> the drafter.
        losses: (drafter, parameters of drafter and target, text, key of random choices, recipe) -> losses.
        drafts: (config, recipe) -> how many drafts training looks at.
    """

    name: str
    description: str
    branch: str
    layers: int
    config: Callable[[Target, Size], Any]
    initial: Callable[[Any, Array], Params]
    attach: Callable[[Any, Target], Drafter]
    losses: LossFunction
    drafts: Callable[[Any, Recipe], int]


def frequent_tokens(counts: Int[np.ndarray, "V"], count: int) -> tuple[int, ...]:
    """The tokens that are counted most often, in rising order; fewer if fewer are counted at all."""
    most = np.argsort(-counts, kind="stable")[:count]
    return tuple(sorted(int(token) for token in most if counts[token]))


def head_sizes(width: int) -> dict[str, Any]:
    """Heads of a drafter of this width, and its hidden MLP width, in the proportions of small Qwen3 models."""
    head_width = 64 if width % 64 == 0 else 32
    heads = max(2, width // head_width // 2 * 2)
    return {
        "width": width,
        "mlp_width": width * 5 // 2,
        "num_heads": heads,
        "num_kv_heads": heads // 2,
        "head_width": head_width,
    }


def known_share(
    logits: Float[Array, "... V"], tokens: Int[Array, "M"] | None
) -> tuple[Float[Array, "... M"], Bool[Array, "..."]]:
    """The target's logits of the tokens that a drafter knows, and where the target's choice is one of them."""
    if tokens is None:
        return logits, jnp.ones(logits.shape[:-1], bool)
    known = logits[..., tokens]
    return known, jnp.max(known, axis=-1) >= jnp.max(logits, axis=-1)


def agree(
    logits: Float[Array, "... M"], target_logits: Float[Array, "... V"], tokens: Int[Array, "M"] | None
) -> Bool[Array, "..."]:
    """Where a drafter's best token is the target's."""
    best = jnp.argmax(logits, axis=-1)
    return (best if tokens is None else tokens[best]) == jnp.argmax(target_logits, axis=-1)
