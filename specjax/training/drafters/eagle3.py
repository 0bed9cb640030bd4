"""Training of EAGLE-3 drafters by the training-time test, as SpecForge does it.

Row t pairs the token at t + 1 with the target's features of t, and is about the token at t + 2. In each further step
the drafter's own output takes the place of the features, beside the true next token: the rows of step s are about the
token at t + 2 + s. The loss of a step is the cross entropy of the drafter's distribution under the target's, among the
tokens that the drafter knows and where the target's choice is one of them; later steps weigh less.

Source: `algorithms/eagle3/model.py` of SpecForge 0.2.0.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Shaped

from specjax.models.drafters.eagle3 import Eagle3Config, Eagle3Drafter, init_params
from specjax.models.drafters.fit import usual_layers
from specjax.models.protocol import Params, Target
from specjax.training.drafters.base import DrafterKind, Losses, Size, Text, agree, head_sizes, known_share
from specjax.training.drafters.unrolled import UnrolledCache
from specjax.training.recipe import Recipe

STEP_WEIGHT = 0.8
"""Each step weighs so much of the one before it."""


def config(target: Target, size: Size) -> Eagle3Config:
    """A drafter of the target's width, with its embedding table, and with its output head if it knows all tokens."""
    return Eagle3Config(
        vocab_size=target.vocab_size,
        draft_vocab_size=target.vocab_size if size.tokens is None else len(size.tokens),
        target_width=target.width,
        target_layers=usual_layers(target.num_layers),
        **head_sizes(target.width),
        windows=(None,) * size.layers,
        context_length=target.context_length,
        own_output=size.tokens is not None,
        maps_tokens=size.tokens is not None,
    )


def losses(drafter: Eagle3Drafter, params: Params, text: Text, key: Array, recipe: Recipe) -> Losses:
    """The loss of `recipe.mtp_steps` steps, see above; nothing is drawn."""
    del key
    rows = text.tokens.shape[1] - 1
    tokens = params["eagle3"].get("tokens")
    hidden, caches = drafter.enter(params, text.features[:, :-1]), _caches(drafter.config)
    total: Any = jnp.zeros(())
    parts, agreement = {}, []
    for step in range(recipe.mtp_steps):
        fed = _shifted(text.tokens, 1 + step)[:, :rows]
        positions = jnp.broadcast_to(1 + step + jnp.arange(rows), fed.shape)
        hidden, caches = drafter.run(params, fed, hidden, positions, jnp.ones_like(fed, bool), caches)
        logits = drafter.logits(params, hidden)
        teacher = _shifted(text.logits, 1 + step)[:, :rows]
        known, there = known_share(teacher, tokens)
        real = jnp.arange(rows) < rows - step
        counted = _shifted(text.trained, step)[:, :rows] & real & there
        entropies = optax.softmax_cross_entropy(logits, jax.nn.softmax(known, axis=-1))
        loss = jnp.sum(jnp.where(counted, entropies, 0)) / text.tokens.size
        parts[f"draft_loss_{step + 1}"] = loss
        total += STEP_WEIGHT**step * loss
        agreement.append(jnp.mean(agree(logits, teacher, tokens), where=jnp.broadcast_to(real, fed.shape)))
    return Losses(total, parts, jnp.stack(agreement))


def _shifted(x: Shaped[Array, "B T *rest"], by: int) -> Shaped[Array, "B T *rest"]:
    """Row t + `by` in the place of row t; zeros after the last."""
    return jnp.pad(x[:, by:], ((0, 0), (0, by), *((0, 0),) * (x.ndim - 2)))


def _caches(config: Eagle3Config) -> Any:
    return tuple(UnrolledCache(window=window) for window in config.windows)


KIND = DrafterKind(
    name="eagle3",
    description="EAGLE-3 drafter",
    branch="eagle3",
    layers=1,
    config=config,
    initial=init_params,
    attach=lambda config, target: Eagle3Drafter(target, config),
    losses=losses,
    drafts=lambda config, recipe: recipe.mtp_steps,
)
