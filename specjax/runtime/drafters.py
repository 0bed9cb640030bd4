"""Giving a target a drafter that does not come in its file."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any

from gguf import TokenType

import checkpoints
from checkpoints.mapping import Put, put_on_default_device
from pallas_kernels.matmul import Activations
from specjax.errors import SpecjaxError
from specjax.models import registry
from specjax.models.draft_model import DraftModel
from specjax.models.ngram import NGram
from specjax.models.protocol import Drafter, Params, Target

DrafterSource = str | Path | NGram
"""A file or folder with a small model or an assistant, "ngram", or an n-gram drafter with settings of its own."""


DRAFT = "draft"
"""The part of the parameter tree that an ordinary model has as a drafter: a tree like the target's."""


def open_drafter(source: DrafterSource) -> NGram | checkpoints.OpenedCheckpoint:
    """What `attach` takes.

    Raises:
        checkpoints.CheckpointError: as for `specjax.load`.
    """
    if isinstance(source, NGram):
        return source
    return NGram() if source == "ngram" else checkpoints.open_checkpoint(source)


def added_paths(drafter: NGram | checkpoints.OpenedCheckpoint) -> list[str]:
    """Paths of the parameters that a drafter adds to the target's."""
    if isinstance(drafter, NGram):
        return []
    if registry.is_assistant(drafter.config):
        return list(drafter.parameter_paths)
    return [f"{DRAFT}.{path}" for path in drafter.parameter_paths if path.startswith("target.")]


def attach(
    drafter: NGram | checkpoints.OpenedCheckpoint,
    target: checkpoints.Checkpoint,
    built: Target,
    *,
    dtype: Any,
    packed: Activations | None,
    progress: Any = None,
    put: Put = put_on_default_device,
) -> tuple[Drafter, Params]:
    """The drafter, and the parameters it adds to the target's: {} , {"mtp": ...} or {"draft": ...}.

    Args:
        drafter: made by `open_drafter`.
        target, built: the target's checkpoint, and what was built of it.
        dtype, packed, progress: as for `specjax.load`.
        put: makes the parameter of a path.

    Raises:
        SpecjaxError: the drafter does not fit the target; the message says in what.
        checkpoints.CheckpointError: as for `specjax.load`.
    """
    if isinstance(drafter, NGram):
        return drafter, {}

    def load(put: Put) -> checkpoints.Checkpoint:
        return drafter.load(dtype, need_tokenizer=False, progress=progress, put=put, packed=packed)

    if registry.is_assistant(drafter.config):
        try:
            assistant = registry.assistant(target.config, drafter.config)
        except ValueError as error:
            raise SpecjaxError(f"{drafter.path} cannot draft for {target.path}: {error}") from error
        return assistant, {"mtp": load(put).params["mtp"]}
    loaded = load(lambda path, values: put(f"{DRAFT}.{path}", values))
    check_vocabulary(loaded, target)
    small, _ = registry.build(loaded.config)
    return DraftModel(small, built.vocab_size), {DRAFT: {"target": loaded.params["target"]}}


def check_vocabulary(drafter: checkpoints.Checkpoint, target: checkpoints.Checkpoint) -> None:
    """Raise `SpecjaxError` unless a token id means the same to both. Without tokenizers, only sizes can be compared."""
    where = f"{drafter.path} cannot draft for {target.path}"
    if drafter.tokenizer is None or target.tokenizer is None:
        sizes = drafter.config.vocab_size, target.config.vocab_size
        if sizes[0] != sizes[1]:
            raise SpecjaxError(
                f"{where}: their vocabularies have {sizes[0]} and {sizes[1]} tokens, and without the tokenizers of both"
                " files nothing tells which token is which"
            )
        return
    own, others = _names(drafter.tokenizer), _names(target.tokenizer)
    different = [pair for pair in enumerate(zip_longest(own, others)) if pair[1][0] != pair[1][1]]
    if different:
        index, (name, other) = different[0]
        raise SpecjaxError(
            f"{where}: their vocabularies differ in {len(different)} of {max(len(own), len(others))} tokens, first in"
            f" {index}: {name!r} against {other!r}; a draft model must share every token"
        )


def _names(tokenizer: checkpoints.TextTokenizer) -> list[str | None]:
    """The text of each id; None for ids that only fill the vocabulary up."""
    vocabulary = tokenizer.vocabulary
    pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
    return [None if kind == TokenType.UNUSED else token for token, kind in pairs]
