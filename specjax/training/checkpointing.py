"""Training state on disk: Orbax checkpoints from which a run continues bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import jax
import optax
import orbax.checkpoint as ocp

from checkpoints.orbax.folder import check_path


class TrainState(NamedTuple):
    """What a step maps to its successor; the order of the text follows from `step`.

    Attributes:
        step: optimizer steps taken so far, int32 [].
        params: parameters in the optimizer's form (`specjax.training.optimizer.to_trainable`).
        opt_state: moments and counters of the optimizer.
    """

    step: jax.Array
    params: dict
    opt_state: optax.OptState


class Checkpoints:
    """The checkpoints of one run, newest `keep` only. Use as a context manager: leaving waits for pending writes."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        check_path(folder.resolve())
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(folder.resolve(), options=options)

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.close()

    @property
    def latest_step(self) -> int | None:
        """Steps taken at the newest checkpoint, or None when there is none."""
        return self._manager.latest_step()

    def save(self, state: TrainState) -> None:
        """Write `state`; returns once it is safe on disk, for the next step reuses its buffers."""
        step = int(state.step)
        if step != self.latest_step:
            self._manager.save(step, args=ocp.args.StandardSave(state._asdict()))
            self._manager.wait_until_finished()

    def restore(self, like: TrainState) -> TrainState:
        """The newest checkpoint, with the structure, shapes and dtypes of `like`."""
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
        return TrainState(**self._manager.restore(self.latest_step, args=ocp.args.StandardRestore(abstract)))


def latest_step(folder: Path) -> int | None:
    """Steps taken at the newest checkpoint in `folder`; None when there is no checkpoint or no such folder."""
    if not folder.is_dir():
        return None
    with Checkpoints(folder) as checkpoints:
        return checkpoints.latest_step
