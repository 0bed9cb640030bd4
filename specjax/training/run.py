"""One training run from text to curves: corpus, vocabulary, training, plot; or its continuation."""

from __future__ import annotations

from dataclasses import replace

from specjax.models.qwen3_5 import Qwen35Config
from specjax.training.batches import consecutive_blocks
from specjax.training.corpus import Corpus
from specjax.training.export import load_params
from specjax.training.plots import plot_losses
from specjax.training.progress import Progress
from specjax.training.recipe import Recipe
from specjax.training.report import held_out_report
from specjax.training.run_folder import RunFolder
from specjax.training.trainer import Outcome, train
from specjax.training.vocabulary import encode_documents, train_vocabulary

DECIDES_NOTHING = {"steps", "eval_every", "eval_batches", "save_every"}
"""Settings that may change when a run is resumed (`steps` as long as the decay has not begun)."""


def run(
    folder: RunFolder,
    config: Qwen35Config,
    recipe: Recipe,
    corpus: Corpus,
    progress: Progress,
    start: RunFolder | None = None,
) -> Outcome:
    """Train a model into the folder, or continue the run that stands there.

    A new run begins with the newest parameters and the vocabulary of the run in `start`, if given. Otherwise the
    vocabulary is trained first, on the training split, with as many tokens as the config says.

    Raises:
        ValueError: the folder holds a run of another recipe.
    """
    previous = folder.read_recipe()
    params = None
    if previous is None and start is not None:
        tokenizer, params = start.read_tokenizer(), load_params(start)
    elif previous is None:
        tokenizer = train_vocabulary([document.text for document in corpus.train], config.vocab_size)
    else:
        check_same(previous, recipe, folder)
        tokenizer = folder.read_tokenizer()
    folder.write(recipe, config, corpus.provenance.to_dict(), tokenizer)
    held_out = consecutive_blocks(encode_documents(tokenizer, corpus.held_out), recipe.batch_size, recipe.length)
    held_out = held_out[:: max(1, len(held_out) // recipe.eval_batches)]
    documents = encode_documents(tokenizer, corpus.train)
    outcome = train(config, recipe, documents, held_out, folder, progress, params)
    if outcome.finished:
        folder.write_report(held_out_report(folder, corpus, outcome.state.params))
    plot_losses(folder)
    return outcome


def check_same(previous: Recipe, recipe: Recipe, folder: RunFolder) -> None:
    """Refuse to continue a run with settings that it was not started with."""
    kept = {name: getattr(previous, name) for name in DECIDES_NOTHING}
    if replace(recipe, **kept) != previous:
        was, now = previous.to_dict(), recipe.to_dict()
        changes = [f"{name}: {was[name]} -> {now[name]}" for name in was if was[name] != now[name]]
        raise ValueError(
            f"{folder.path} holds a run with other settings ({'; '.join(changes)}); "
            "continue it with its own settings, or choose another folder"
        )
