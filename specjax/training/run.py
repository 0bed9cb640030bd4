"""One training run from text to curves: corpus, vocabulary, training, plot; or its continuation."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from specjax.training.batches import Batches, consecutive_blocks
from specjax.training.checkpointing import latest_step
from specjax.training.corpus import Corpus
from specjax.training.export import load_params, load_state
from specjax.training.families.base import TrainingConfig
from specjax.training.families.registry import family_of
from specjax.training.loop import train
from specjax.training.optimizer import learning_rate
from specjax.training.plots import plot_losses
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.report import held_out_report
from specjax.training.run_folder import RunFolder
from specjax.training.trainer import ModelTask, Outcome
from specjax.training.vocabulary import encode_documents, train_vocabulary

DECIDES_NOTHING = {"steps", "eval_every", "eval_batches", "save_every"}
"""Settings that may change when a run is resumed (`steps` as long as no step has been taken at another rate)."""


def run(
    folder: RunFolder,
    config: TrainingConfig,
    recipe: Recipe,
    corpus: Corpus,
    progress: Progress,
    start: RunFolder | None = None,
) -> Outcome:
    """Train a model into the folder, or continue the run that stands there; a finished one is left as it is.

    As long as there is no checkpoint, a run begins with the newest parameters and the vocabulary of the run in `start`,
    if given. Otherwise the vocabulary is trained first, on the training split, with as many tokens as the config says.

    Raises:
        ValueError: the folder holds a run of another recipe or on other text, the text is too short for a batch, or a
            head is to be trained and there is no trunk.
    """
    previous, taken = folder.read_recipe(), latest_step(folder.checkpoints)
    if previous is not None:
        check_same(folder, previous, recipe, config, taken or 0)
    if taken == recipe.steps and folder.report.exists():
        outcome = Outcome(config, load_state(folder), finished=True)
    else:
        if previous is not None:
            check_text(folder, corpus)
        outcome = train_on(folder, config, recipe, corpus, progress, start)
    plot_losses(folder)
    return outcome


def train_on(
    folder: RunFolder,
    config: TrainingConfig,
    recipe: Recipe,
    corpus: Corpus,
    progress: Progress,
    start: RunFolder | None,
) -> Outcome:
    """Take the steps that are left, and report on the model when none is."""
    params = None
    begun = latest_step(folder.checkpoints) is not None
    if begun:
        tokenizer = folder.read_tokenizer()
    elif start is not None:
        params, tokenizer = load_params(start), start.read_tokenizer()
    elif recipe.head_only:
        raise ValueError(
            f"{folder.path} has no checkpoint yet, and a head is trained on the trunk of another run: name that run"
            " again (--head-of DIR)"
        )
    else:
        tokenizer = train_vocabulary([document.text for document in corpus.train], config.vocab_size)
    held_out = consecutive_blocks(encode_documents(tokenizer, corpus.held_out), recipe.batch_size, recipe.length)
    held_out = held_out[:: max(1, len(held_out) // recipe.eval_batches)]
    batches = Batches(encode_documents(tokenizer, corpus.train), recipe.batch_size, recipe.length, recipe.seed)
    if not begun or recipe != folder.read_recipe():
        folder.write(recipe, config, corpus.provenance.to_dict(), tokenizer)
    state = train(ModelTask(config, recipe, params), batches, held_out, folder, progress)
    outcome = Outcome(config, state, finished=int(state.step) >= recipe.steps)
    if outcome.finished:
        folder.write_report(held_out_report(folder, corpus, outcome.state.params))
    return outcome


def check_same(folder: RunFolder, previous: Recipe, recipe: Recipe, config: TrainingConfig, taken: int) -> None:
    """Refuse to continue a run that has `taken` steps behind it with settings that it was not started with."""
    was, now = (
        {"family": family_of(c).name} | r.to_dict() | asdict(c)
        for r, c in ((previous, folder.read_config()), (recipe, config))
    )
    if was["family"] != now["family"]:
        raise ValueError(
            f"{folder.path} holds a run of a {was['family']} model, not of a {now['family']} one; choose another folder"
        )
    changes = [f"{name}: {was[name]} -> {now[name]}" for name in now.keys() - DECIDES_NOTHING if was[name] != now[name]]
    if changes:
        raise ValueError(
            f"{folder.path} holds a run with other settings ({'; '.join(sorted(changes))}); "
            "continue it with its own settings, or choose another folder"
        )
    rates_were, rates_are = (learning_rate(r)(np.arange(taken)) for r in (previous, recipe))
    if not np.array_equal(rates_were, rates_are):
        raise ValueError(
            f"{folder.path} holds a run that took {taken} of {previous.steps} steps; with {recipe.steps} steps, some"
            " of them would have had another learning rate, because it decays at the end: continue it with"
            f" {previous.steps} steps, or choose another folder"
        )


def check_text(folder: RunFolder, corpus: Corpus) -> None:
    """Refuse to continue a run on text that it was not started with."""
    was, now = folder.read_provenance(), corpus.provenance.to_dict()
    if was.get("sha256") != now["sha256"]:
        was_made_of, is_made_of = (
            f"{p['train_bytes']} + {p['held_out_bytes']} bytes, Python {p['python_version']}" for p in (was, now)
        )
        raise ValueError(
            f"{folder.path} holds a run on other text ({was_made_of}) than this Python has ({is_made_of}); continue it"
            " with the Python that started it, or choose another folder"
        )
