"""Invariants of the tokenizer: it fits the model, and texts can end."""

from __future__ import annotations

from checkpoints.errors import DamagedTokenizerError, TokenizerError
from checkpoints.findings import Report
from checkpoints.load import OpenedCheckpoint


def check(opened: OpenedCheckpoint, report: Report) -> None:
    """Check the tokenizer, and add what is wrong to the report."""
    size = opened.config.vocab_size
    _end_ids_are_rows(opened, size, report)
    try:
        tokenizer = opened.tokenizer(required=True)
    except DamagedTokenizerError as error:
        report.error(
            str(error), "copy the tokenizer's files again; or convert again with `specjax convert --tokenizer`"
        )
        return
    except TokenizerError as error:
        if opened.family.role != "target":
            report.checked.append("a file that only drafts needs no tokenizer of its own")
        else:
            report.note(str(error), "prompts must be token ids; or convert again with `specjax convert --tokenizer`")
        return
    assert tokenizer is not None
    if tokenizer.vocab_size > size:
        report.error(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the embedding table {size} rows: ids from {size} on"
            " stand for nothing",
            "tokenizer and weights are of different models: take the tokenizer of the original",
        )
    special = tokenizer.vocabulary.special_ids
    outside = sorted(i for i in {*special.values(), *tokenizer.eos_ids} if not 0 <= i < size)
    if outside:
        report.error(f"special tokens are outside the vocabulary of {size}: {outside}", "correct their ids")
    elif not tokenizer.eos_ids:
        report.note("no token ends a text: generation goes on to its limit", "set tokenizer.ggml.eos_token_id")
    else:
        report.checked.append(f"the tokenizer's {tokenizer.vocab_size} tokens fit {size} rows, and texts can end")


def _end_ids_are_rows(opened: OpenedCheckpoint, size: int, report: Report) -> None:
    """Metadata name tokens even when the tokenizer cannot be built."""
    for key, value in opened.metadata.items():
        if key.endswith("_token_id") and isinstance(value, int) and not isinstance(value, bool) and value >= size:
            report.error(f"{key} is {value}, but there are {size} tokens", "correct the key")
