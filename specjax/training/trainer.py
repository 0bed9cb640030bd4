"""The training loop: jitted steps with donated state, checkpoints, held-out evaluation, a log."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Int

from specjax.training.batches import Batches
from specjax.training.checkpointing import Checkpoints, TrainState
from specjax.training.families.base import TrainingConfig
from specjax.training.families.registry import family_of
from specjax.training.initial import initial_parameters
from specjax.training.loss import agreements, cross_entropies, head_loss, predict, training_loss
from specjax.training.optimizer import from_trainable, learning_rate, make_optimizer, to_trainable
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.run_folder import RunFolder


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


def train(
    config: TrainingConfig,
    recipe: Recipe,
    batches: Batches,
    held_out_blocks: Int[np.ndarray, "n B T"],
    folder: RunFolder,
    progress: Progress,
    start: dict | None = None,
) -> Outcome:
    """Take the recipe's steps, continuing from the folder's newest checkpoint when there is one.

    Without one, begin with the parameters `start`, or with random ones.

    An interrupt (Ctrl-C, SIGTERM) ends the run after the current step, with a checkpoint; training again continues
    as if nothing had happened.
    """
    state = initial_state(config, recipe, start)
    with Checkpoints(folder.checkpoints) as checkpoints, stop_request() as stop_requested:
        if checkpoints.latest_step is not None:
            state = checkpoints.restore(state)
        first = int(state.step)
        with progress.track(first, recipe.steps):
            for step in range(first, recipe.steps):
                started = time.perf_counter()
                state, parts = train_step(config, recipe, state, batches[step])
                values = {name: float(value) for name, value in parts.items()}
                values["tokens_per_second"] = recipe.tokens_per_step / (time.perf_counter() - started)
                folder.log("step", step + 1, **values)
                progress.step(step + 1, values)
                last = step + 1 == recipe.steps
                if last or (step + 1) % recipe.eval_every == 0:
                    held_out = evaluate(config, recipe, state.params, held_out_blocks, recipe.mtp_sequences)
                    folder.log("held_out", step + 1, **held_out)
                    progress.held_out(step + 1, held_out)
                if last or stop_requested() or (step + 1) % recipe.save_every == 0:
                    checkpoints.save(state)
                if stop_requested():
                    break
    return Outcome(config, state, finished=int(state.step) >= recipe.steps)


@contextmanager
def stop_request() -> Iterator[Callable[[], bool]]:
    """While inside, SIGINT and SIGTERM only set a flag: a step with donated buffers must not be cut in two."""
    requested = False

    def request(*_: object) -> None:
        nonlocal requested
        requested = True

    handlers = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: requested
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def steps_within(minutes: float, config: TrainingConfig, recipe: Recipe, timed_steps: int = 3) -> Recipe:
    """The recipe with as many steps as should fit into `minutes`, by timing a few on random tokens.

    A tenth of the time is left to compilation, evaluation and checkpoints.
    """
    state = initial_state(config, recipe)
    tokens = np.random.default_rng(0).integers(
        config.vocab_size, size=(recipe.batch_size, recipe.length), dtype=np.int32
    )
    seconds = []
    for _ in range(1 + timed_steps):  # the first compiles
        started = time.perf_counter()
        state, parts = train_step(config, recipe, state, tokens)
        jax.block_until_ready((state, parts))
        seconds.append(time.perf_counter() - started)
    return replace(recipe, steps=max(1, int(0.9 * 60 * minutes / float(np.median(seconds[1:])))))
