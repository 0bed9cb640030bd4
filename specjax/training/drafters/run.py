"""A run that trains a drafter: from a target and text to a file; or its continuation."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from checkpoints import write_gguf
from checkpoints.atomic import write_text
from checkpoints.gguf.writer import WeightType
from specjax.errors import SpecjaxError
from specjax.models.registry import FAMILIES
from specjax.runtime.model import Model
from specjax.training.batches import Batches, consecutive_blocks
from specjax.training.corpus import Corpus
from specjax.training.drafters.base import DrafterKind, Size, frequent_tokens
from specjax.training.drafters.task import DrafterTask, Objective
from specjax.training.loop import train
from specjax.training.plots import plot_drafter
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.run_folder import RunFolder

DEFAULT_BLOCK = 8
CHANGEABLE = ("steps", "eval_every", "eval_batches", "save_every")
"""Settings of a recipe that a run may be continued with, see `specjax.training.run`."""


class DrafterRun:
    """A drafter of a kind for a target, and the text that it is trained on.

    Raises:
        SpecjaxError: the target has no tokenizer, or the drafter does not fit it.
    """

    def __init__(
        self,
        kind: DrafterKind,
        model: Model,
        corpus: Corpus,
        recipe: Recipe,
        *,
        layers: int | None = None,
        draft_vocab: int | None = None,
        block: int | None = None,
    ) -> None:
        """
        Args:
            kind: of the drafter.
            model: the target.
            corpus: the text.
            recipe: how it is trained.
            layers: of the drafter; default: what is usual for its kind.
            draft_vocab: the drafter knows so many tokens, the most frequent ones of the text; None: all.
            block: slots of a block, for kinds that fill blocks; default: 8.
        """
        if model.tokenizer is None:
            raise SpecjaxError(f"{model.path} has no tokenizer that can be used, and the drafter is trained on texts")
        self.kind, self.model, self.corpus, self.recipe = kind, model, corpus, recipe
        self.documents, self.held_out = (
            [np.array(model.tokenizer.encode(document.text), np.int32) for document in documents]
            for documents in (corpus.train, corpus.held_out)
        )
        vocab_size = model.target.vocab_size
        counts = np.bincount(np.concatenate(self.documents), minlength=vocab_size)
        whole = draft_vocab is None or draft_vocab >= vocab_size
        tokens = None if whole or draft_vocab is None else frequent_tokens(counts, draft_vocab)
        rarest = vocab_size - 1 - int(np.argmin(counts[::-1]))  # it can stand for what is to be filled in
        size = Size(
            kind.layers if layers is None else layers, tokens, DEFAULT_BLOCK if block is None else block, rarest
        )
        try:
            self.config = kind.config(model.target, size)
        except ValueError as error:
            raise SpecjaxError(f"there is no {kind.name} drafter for {model.path}: {error}") from error
        self._fixed: dict[str, Any] = {}
        if tokens is not None:
            self._fixed = {kind.branch: {"tokens": jnp.asarray(tokens, jnp.int32)}}

    @property
    def task(self) -> DrafterTask:
        """What the training loop is given."""
        objective = Objective(self.kind, self.config, self.model.target, self.recipe)
        return DrafterTask(objective, {"target": self.model.params["target"]}, self._fixed)

    @property
    def description(self) -> dict[str, Any]:
        """What decides the run, as plain values."""
        return {
            "drafter": self.kind.name,
            "target": {"path": str(self.model.path), "digest": self.model.digest},
            "recipe": self.recipe.to_dict(),
            "config": asdict(self.config),
            "corpus": self.corpus.provenance.to_dict(),
        }

    def train(self, folder: RunFolder, progress: Progress) -> dict | None:
        """Train into the folder, or continue what stands there.

        Returns:
            The trained parameters, or None if the run was interrupted.

        Raises:
            SpecjaxError: the folder holds another run.
            ValueError: the text is too short for a batch.
        """
        self._check_same(folder)
        recipe, task = self.recipe, self.task
        held_out = consecutive_blocks(self.held_out, recipe.batch_size, recipe.length)
        held_out = held_out[:: max(1, len(held_out) // recipe.eval_batches)]
        batches = Batches(self.documents, recipe.batch_size, recipe.length, recipe.seed)
        write_text(folder.description, json.dumps(self.description, indent=2) + "\n")
        state = train(task, batches, held_out, folder, progress)
        plot_drafter(folder)
        if int(state.step) < recipe.steps:
            return None
        folder.write_report(task.evaluate(state.params, held_out))
        return task.params(state.params)

    def export(self, params: dict, path: Path, weights: WeightType) -> None:
        """Write the drafter as a GGUF with the target's tokenizer."""
        assert self.model.tokenizer is not None
        write_gguf(
            path,
            FAMILIES,
            self.config,
            params,
            self.model.tokenizer,
            weights=weights,
            metadata={
                "general.name": f"{self.kind.name} drafter",
                "general.description": f"{self.kind.description} for {Path(self.model.path).name}",
            },
        )

    def _check_same(self, folder: RunFolder) -> None:
        if not folder.description.exists():
            return
        was, now = (_decisive(fields) for fields in (json.loads(folder.description.read_text()), self.description))
        if changed := sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name)):
            raise SpecjaxError(
                f"{folder.path} holds a run with another {', '.join(changed)}; continue it with what it was started"
                " with, or choose another folder"
            )


def _decisive(fields: dict[str, Any]) -> dict[str, Any]:
    """What must stay the same when a run is continued; JSON has made lists of tuples."""
    plain = json.loads(json.dumps(fields))
    recipe = {name: value for name, value in plain.get("recipe", {}).items() if name not in CHANGEABLE}
    target = plain.get("target", {}).get("digest")
    return {**plain, "target": target, "recipe": recipe, "corpus": plain.get("corpus", {}).get("sha256")}
