"""Training a drafter for a target that stands still."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from pallas_kernels import using
from specjax.models.protocol import Drafter, Params, Target
from specjax.state import KVTypes, SequenceState
from specjax.training.checkpointing import TrainState
from specjax.training.drafters.base import DrafterKind, Losses, Text
from specjax.training.optimizer import from_trainable, learning_rate, make_optimizer, to_trainable
from specjax.training.recipe import Recipe


def read_text(target: Target, drafter: Drafter, params: Params, tokens: Int[Array, "B T"]) -> Text:
    """What the target makes of texts. The right token of a position is what the target says there."""
    batch, length = tokens.shape
    zero = jnp.zeros((batch,), jnp.int32)
    layers = target.init_layers(batch, length, rows=1, chunk=length, rollback="replay", kv_types=KVTypes())
    output, _ = target.extend(
        params, tokens, zero + length, SequenceState(layers, None, zero), request=drafter.request, rows="all"
    )
    assert output.logits is not None
    said = jnp.argmax(output.logits, axis=-1).astype(tokens.dtype)
    labels = jnp.concatenate([tokens[:, :1], said[:, :-1]], axis=1)
    features = jnp.concatenate(output.features.layer_inputs, axis=-1)
    return Text(tokens, output.logits, features, jnp.ones(tokens.shape, bool), labels)


@dataclass(frozen=True)
class Objective:
    """What is trained and how, without any arrays: the static argument of the jitted steps.

    Attributes:
        kind, config: of the drafter.
        target: what it drafts for.
        recipe: how it is trained; `mtp_steps` is how many drafts are unrolled, for kinds that unroll them.
    """

    kind: DrafterKind
    config: Any
    target: Target
    recipe: Recipe

    def losses(self, trainable: dict, target_params: Params, fixed: Params, tokens: Array, key: Array) -> Losses:
        """The losses of a batch; gradients reach `trainable` alone."""
        drafter = self.kind.attach(self.config, self.target)
        frozen = jax.lax.stop_gradient(read_text(self.target, drafter, target_params, tokens))
        with using("xla"):  # a prompt's own kernels have no derivatives
            params = {**target_params, **from_trainable(trainable, fixed)}
            return self.kind.losses(drafter, params, frozen, key, self.recipe)


@dataclass(frozen=True)
class DrafterTask:
    """See `specjax.training.loop.Task`.

    Attributes:
        objective: what is trained and how.
        target_params: the parameters that stand still, {"target": ...}.
        fixed: parameters of the drafter that no gradient reaches, as a part of its tree.
    """

    objective: Objective
    target_params: Params = field(repr=False)
    fixed: Params = field(repr=False)

    @property
    def recipe(self) -> Recipe:
        return self.objective.recipe

    @property
    def vocab_size(self) -> int:
        return self.objective.target.vocab_size

    def initial(self) -> TrainState:
        """Random parameters, a function of the seed alone."""
        objective = self.objective
        trainable = to_trainable(objective.kind.initial(objective.config, jax.random.key(self.recipe.seed)))
        return TrainState(jnp.int32(0), trainable, make_optimizer(self.recipe).init(trainable))

    def params(self, trainable: dict) -> Params:
        """The drafter's parameters, as it is run with them."""
        return from_trainable(trainable, self.fixed)

    def step(self, state: TrainState, tokens: Int[np.ndarray, "B T"]) -> tuple[TrainState, dict[str, Array]]:
        """One optimizer step; consumes the state that it is given."""
        return _step(self.objective, self.target_params, self.fixed, state, tokens)

    def evaluate(self, trainable: dict, blocks: Int[np.ndarray, "n B T"]) -> dict[str, float]:
        """Means over held-out blocks; random choices are the same each time."""
        measured = [
            jax.device_get(_measure(self.objective, self.target_params, self.fixed, trainable, tokens))
            for tokens in blocks
        ]
        return {name: float(np.mean([values[name] for values in measured])) for name in measured[0]}


def _logged(losses: Losses) -> dict[str, Array]:
    agreements = {f"agreement_{index}": share for index, share in enumerate(losses.agreement, 1)}
    return {"loss": losses.total, **losses.parts, **agreements}


@partial(jax.jit, static_argnums=0, donate_argnums=3)
def _step(
    objective: Objective, target_params: Params, fixed: Params, state: TrainState, tokens: Int[Array, "B T"]
) -> tuple[TrainState, dict[str, Array]]:
    recipe = objective.recipe
    key = jax.random.fold_in(jax.random.key(recipe.seed), state.step)

    def loss(trainable: dict) -> tuple[Array, Losses]:
        losses = objective.losses(trainable, target_params, fixed, tokens, key)
        return losses.total, losses

    gradient, losses = jax.grad(loss, has_aux=True)(state.params)
    updates, opt_state = make_optimizer(recipe).update(gradient, state.opt_state, state.params)
    parts = _logged(losses)
    parts |= {"gradient_norm": optax.tree.norm(gradient), "learning_rate": learning_rate(recipe)(state.step)}
    return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), parts


@partial(jax.jit, static_argnums=0)
def _measure(
    objective: Objective, target_params: Params, fixed: Params, trainable: dict, tokens: Int[Array, "B T"]
) -> dict[str, Array]:
    return _logged(objective.losses(trainable, target_params, fixed, tokens, jax.random.key(0)))
