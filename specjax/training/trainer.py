"""Training a whole model, or its head: jitted steps with donated state, and held-out evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from specjax.training.checkpointing import TrainState
from specjax.training.families.base import TrainingConfig
from specjax.training.families.registry import family_of
from specjax.training.initial import initial_parameters
from specjax.training.loss import agreements, cross_entropies, head_loss, predict, training_loss
from specjax.training.optimizer import from_trainable, learning_rate, make_optimizer, to_trainable
from specjax.training.recipe import Recipe


@dataclass(frozen=True)
class Outcome:
    """How a run ended: its model and last state, and whether all steps of the recipe were taken."""

    config: TrainingConfig
    state: TrainState
    finished: bool

    @property
    def params(self) -> dict:
        """The parameters, as the model runs them."""
        return model_params(self.config, self.state.params)


def model_params(config: TrainingConfig, trainable: dict) -> dict:
    """The parameters, as the model runs them, of those that the optimizer moves."""
    return from_trainable(trainable, family_of(config).fixed(config))


def initial_state(config: TrainingConfig, recipe: Recipe, params: dict | None = None) -> TrainState:
    """The state before the first step: a function of the seed alone, or `params` as the model runs them."""
    if params is None:
        params = initial_parameters(config, jax.random.key(recipe.seed))
    trainable = to_trainable(params)
    return TrainState(jnp.int32(0), trainable, make_optimizer(recipe).init(trainable))


@partial(jax.jit, static_argnums=(0, 1), donate_argnums=2)
def train_step(
    config: TrainingConfig, recipe: Recipe, state: TrainState, tokens: Int[Array, "B T"]
) -> tuple[TrainState, dict[str, Array]]:
    """One optimizer step; consumes the state that it is given. Returns the next one and what the log wants to know."""

    def loss(trainable: dict) -> tuple[Array, dict[str, Array]]:
        params, sequences = model_params(config, trainable), recipe.mtp_sequences
        if recipe.head_only:
            return head_loss(config, params, tokens, mtp_steps=recipe.mtp_steps, mtp_sequences=sequences)
        steps = recipe.mtp_steps if config.mtp_layers and recipe.mtp_weight else 0
        return training_loss(
            config, params, tokens, mtp_steps=steps, mtp_sequences=sequences, mtp_weight=recipe.mtp_weight
        )

    gradient, parts = jax.grad(loss, has_aux=True)(state.params)
    updates, opt_state = make_optimizer(recipe).update(gradient, state.opt_state, state.params)
    parts |= {"gradient_norm": optax.tree.norm(gradient), "learning_rate": learning_rate(recipe)(state.step)}
    return TrainState(state.step + 1, optax.apply_updates(state.params, updates), opt_state), parts


@partial(jax.jit, static_argnums=(0, 1, 2))
def measure(
    config: TrainingConfig, mtp_steps: int, mtp_sequences: int, trainable: dict, tokens: Int[Array, "B T"]
) -> dict[str, Array]:
    """Losses of the trunk and of each draft step, and how often each draft step agrees with the trunk."""
    predictions = predict(config, model_params(config, trainable), tokens, mtp_steps, mtp_sequences)
    trunk, *mtp = cross_entropies(predictions, tokens)
    return {
        "loss": trunk,
        **{f"mtp_loss_{j}": loss for j, loss in enumerate(mtp, 1)},
        **{f"mtp_agreement_{j}": share for j, share in enumerate(agreements(predictions), 1)},
    }


def evaluate(
    config: TrainingConfig, recipe: Recipe, trainable: dict, blocks: Int[np.ndarray, "n B T"], mtp_sequences: int
) -> dict[str, float]:
    """The means of `measure` over held-out blocks."""
    mtp_steps = recipe.mtp_steps if config.mtp_layers else 0
    measured = [jax.device_get(measure(config, mtp_steps, mtp_sequences, trainable, tokens)) for tokens in blocks]
    return {name: float(np.mean([values[name] for values in measured])) for name in measured[0]}


@dataclass(frozen=True)
class ModelTask:
    """See `specjax.training.loop.Task`. It begins with the parameters `start`, or with random ones."""

    config: TrainingConfig
    recipe: Recipe
    start: dict | None = None

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    def initial(self) -> TrainState:
        """The state before the first step, see `initial_state`."""
        return initial_state(self.config, self.recipe, self.start)

    def step(self, state: TrainState, tokens: Int[np.ndarray, "B T"]) -> tuple[TrainState, dict[str, Array]]:
        """One optimizer step, see `train_step`."""
        return train_step(self.config, self.recipe, state, tokens)

    def evaluate(self, trainable: dict, blocks: Int[np.ndarray, "n B T"]) -> dict[str, float]:
        """Held-out losses and agreement, see `evaluate`."""
        return evaluate(self.config, self.recipe, trainable, blocks, self.recipe.mtp_sequences)
