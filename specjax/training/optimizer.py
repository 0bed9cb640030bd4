"""The optimizer, and the form in which it sees the parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.tree_util import DictKey

from specjax.training.recipe import Recipe


def is_decay_rate(path: tuple) -> bool:
    """Whether the parameter at `path` is the `a` of a gated delta net."""
    return path[-1] == DictKey("a")


def to_trainable(params: dict) -> dict:
    """What the optimizer moves: parameters but for integers, with `a` replaced by log(-a).

    A rate of decay has to keep its sign, and trains well on a log scale.
    """
    floating = {path: x for path, x in flatten_dict(params).items() if jnp.issubdtype(x.dtype, jnp.floating)}
    return jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.log(-x) if is_decay_rate(path) else x, unflatten_dict(floating)
    )


def from_trainable(trainable: dict, fixed: dict | None = None) -> dict:
    """The inverse of `to_trainable`: parameters as the model runs them, with those that are `fixed`."""
    params = jax.tree_util.tree_map_with_path(lambda path, x: -jnp.exp(x) if is_decay_rate(path) else x, trainable)
    return unflatten_dict(flatten_dict(params) | flatten_dict(fixed or {}))


def is_matrix(path: tuple, value: jax.Array) -> bool:
    """Whether the parameter is a projection or an embedding table; norms, biases and convolution taps are not."""
    return value.ndim == 2 and DictKey("conv") not in path


def decay_mask(params: dict) -> dict:
    """True for the parameters that weight decay applies to."""
    return jax.tree_util.tree_map_with_path(is_matrix, params)


def hidden_matrices(params: dict) -> dict:
    """What Muon updates: matrices between hidden rows. Embedding tables and output heads stay with AdamW."""

    def spec(path: tuple, value: jax.Array) -> optax.contrib.MuonDimensionNumbers | None:
        table = DictKey("embed") in path or DictKey("lm_head") in path
        return optax.contrib.MuonDimensionNumbers() if is_matrix(path, value) and not table else None

    return jax.tree_util.tree_map_with_path(spec, params)


def learning_rate(recipe: Recipe) -> optax.Schedule:
    """Linear warm-up, a plateau, and a linear decay to zero over the last `decay_fraction` of the steps.

    Until the decay begins the number of steps has no influence, so that it can still be changed (Hägele et al.,
    "Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations", arXiv 2405.18392).
    """
    peak = recipe.learning_rate
    decay_steps = max(1, round(recipe.steps * recipe.decay_fraction))
    warmup_steps = max(1, min(recipe.warmup_steps, recipe.steps - decay_steps))
    return optax.join_schedules(
        [
            optax.linear_schedule(peak / warmup_steps, peak, warmup_steps - 1),
            optax.linear_schedule(peak, 0.0, decay_steps),
        ],
        [recipe.steps - decay_steps],
    )


def make_optimizer(recipe: Recipe) -> optax.GradientTransformation:
    """Clipping by the global norm, then Muon for hidden matrices and AdamW for the rest, or AdamW for all.

    When only the head trains, nothing else moves, not even by weight decay.
    """
    b1, b2 = recipe.betas
    rate = learning_rate(recipe)
    if recipe.optimizer == "adamw":
        update = optax.adamw(rate, b1, b2, weight_decay=recipe.weight_decay, mask=decay_mask)
    else:
        update = optax.contrib.muon(
            rate,
            adam_b1=b1,
            adam_b2=b2,
            weight_decay=recipe.weight_decay,
            weight_decay_mask=decay_mask,
            muon_weight_dimension_numbers=hidden_matrices,
            consistent_rms=0.2,  # the update's size is that of AdamW, so that both take the same learning rate
        )
    everything = optax.chain(optax.clip_by_global_norm(recipe.clip_norm), update)
    if not recipe.head_only:
        return everything
    return optax.partition({"target": optax.set_to_zero(), "mtp": everything}, {"target": "target", "mtp": "mtp"})
