"""The training loop: steps, checkpoints, held-out evaluation, a log. What is trained is a `Task`."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol

import jax
import numpy as np
from jaxtyping import Array, Int

from specjax.training.batches import Batches
from specjax.training.checkpointing import Checkpoints, TrainState
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.run_folder import RunFolder


class Task(Protocol):
    """Something to be trained, and how."""

    @property
    def recipe(self) -> Recipe:
        """How long, on how much at once, and the like."""
        ...

    @property
    def vocab_size(self) -> int:
        """How many tokens texts may have."""
        ...

    def initial(self) -> TrainState:
        """The state before the first step."""
        ...

    def step(self, state: TrainState, tokens: Int[np.ndarray, "B T"]) -> tuple[TrainState, dict[str, Array]]:
        """One optimizer step; consumes the state that it is given. Returns the next one and what is logged."""
        ...

    def evaluate(self, trainable: dict, blocks: Int[np.ndarray, "n B T"]) -> dict[str, float]:
        """What is logged of parameters on held-out blocks."""
        ...


def train(
    task: Task,
    batches: Batches,
    held_out_blocks: Int[np.ndarray, "n B T"],
    folder: RunFolder,
    progress: Progress,
) -> TrainState:
    """Take the recipe's steps, continuing from the folder's newest checkpoint when there is one.

    An interrupt (Ctrl-C, SIGTERM) ends the run after the current step, with a checkpoint; training again continues
    as if nothing had happened.
    """
    recipe, state = task.recipe, task.initial()
    with Checkpoints(folder.checkpoints) as checkpoints, stop_request() as stop_requested:
        if checkpoints.latest_step is not None:
            state = checkpoints.restore(state)
        # For arrays that are bound to a device, as what was read is, JAX compiles another program than for others.
        state = jax.device_put(state, state.step.sharding)
        first = int(state.step)
        with progress.track(first, recipe.steps):
            for step in range(first, recipe.steps):
                started = time.perf_counter()
                state, parts = task.step(state, batches[step])
                values = {name: float(value) for name, value in parts.items()}
                values["tokens_per_second"] = recipe.tokens_per_step / (time.perf_counter() - started)
                folder.log("step", step + 1, **values)
                progress.step(step + 1, values)
                last = step + 1 == recipe.steps
                if last or (step + 1) % recipe.eval_every == 0:
                    held_out = task.evaluate(state.params, held_out_blocks)
                    folder.log("held_out", step + 1, **held_out)
                    progress.held_out(step + 1, held_out)
                if last or stop_requested() or (step + 1) % recipe.save_every == 0:
                    checkpoints.save(state)
                if stop_requested():
                    break
    return state


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


def steps_within(minutes: float, task: Task, timed_steps: int = 3) -> Recipe:
    """The task's recipe with as many steps as should fit into `minutes`, by timing a few on random tokens.

    A tenth of the time is left to compilation, evaluation and checkpoints.
    """
    recipe, state = task.recipe, task.initial()
    shape = recipe.batch_size, recipe.length
    tokens = np.random.default_rng(0).integers(task.vocab_size, size=shape, dtype=np.int32)
    seconds = []
    for _ in range(1 + timed_steps):  # the first compiles
        started = time.perf_counter()
        state, parts = task.step(state, tokens)
        jax.block_until_ready((state, parts))
        seconds.append(time.perf_counter() - started)
    return replace(recipe, steps=max(1, int(0.9 * 60 * minutes / float(np.median(seconds[1:])))))
