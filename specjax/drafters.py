"""Giving a target a drafter that does not come in its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import checkpoints
from specjax.errors import SpecjaxError
from specjax.models import registry
from specjax.models.draft_model import DraftModel
from specjax.models.ngram import NGram
from specjax.models.protocol import Drafter, Params, Target

DrafterSource = str | Path | NGram
"""A file or folder with a small model or an assistant, "ngram", or an n-gram drafter with settings of its own."""


def attach(
    source: DrafterSource, target: checkpoints.Checkpoint, built: Target, *, dtype: Any, progress: Any = None
) -> tuple[Drafter, Params]:
    """The drafter, and the parameters it adds to the target's: {} , {"mtp": ...} or {"draft": ...}.

    Args:
        source: see `DrafterSource`.
        target, built: the target's checkpoint, and what was built of it.
        dtype, progress: as for `specjax.load`.

    Raises:
        SpecjaxError: the drafter does not fit the target; the message says in what.
        checkpoints.CheckpointError: as for `specjax.load`.
    """
    if isinstance(source, NGram):
        return source, {}
    if source == "ngram":
        return NGram(), {}
    drafter = checkpoints.load(source, dtype=dtype, need_tokenizer=False, progress=progress)
    check_vocabulary(drafter, target)
    small, _ = registry.build(drafter.config)
    return DraftModel(small, built.vocab_size), {"draft": {"target": drafter.params["target"]}}


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
    own, others = (checkpoint.tokenizer.vocabulary.tokens for checkpoint in (drafter, target) if checkpoint.tokenizer)
    if different := _differences(own, others):
        raise SpecjaxError(
            f"{where}: their vocabularies differ in {len(different)} of {max(len(own), len(others))} tokens, first in"
            f" {_name(own, different[0])} against {_name(others, different[0])}; a draft model must share every token"
        )


def _differences(own: Sequence[str], others: Sequence[str]) -> list[int]:
    pairs = zip(own, others, strict=False)
    return [i for i, (a, b) in enumerate(pairs) if a != b] + list(range(*sorted((len(own), len(others)))))


def _name(tokens: Sequence[str], i: int) -> str:
    return f"{i}: {tokens[i]!r}" if i < len(tokens) else f"{i}: none"
