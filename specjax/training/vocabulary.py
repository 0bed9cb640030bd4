"""A byte-level BPE vocabulary, trained on the corpus, with the pre-tokenizer of the Qwen3.5 family.

With that pre-tokenizer a GGUF can name it (`tokenizer.ggml.pre = qwen35`), and other programs split text the same way.
Its rules suit Python: after a line break a run of spaces keeps all but its last space, which joins the following word,
so that an indent is one token and ` return` is another.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from checkpoints.tokenizers.backend import pre_tokenizer
from specjax.training.corpus import Document

END_OF_TEXT = "<|endoftext|>"
"""Ends every document; also the token at which generation stops."""

PRETOKENIZER = "qwen35"
"""The name of the pre-tokenizer in GGUF metadata."""


def train_vocabulary(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train byte-level BPE on `texts`: all 256 bytes, `END_OF_TEXT` (id 0) and the most useful merges.

    Args:
        texts: the training split only; held-out text must not shape the vocabulary it is measured with.
        vocab_size: V.

    Raises:
        ValueError: when V has no room for the bytes, or the texts hold too few merges to fill it.
    """
    if vocab_size <= 257:
        raise ValueError(f"vocab_size is {vocab_size}; it needs room for 256 bytes, {END_OF_TEXT} and some merges")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(PRETOKENIZER)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[AddedToken(END_OF_TEXT, special=True, normalized=False)],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the texts yield only {tokenizer.get_vocab_size()} tokens, {vocab_size} were asked for; "
            "give more text or a smaller vocabulary"
        )
    return tokenizer


def encode_documents(tokenizer: Tokenizer, documents: Sequence[Document]) -> list[np.ndarray]:
    """Token ids of every document, int32, each ending with `END_OF_TEXT`."""
    end = end_of_text(tokenizer)
    encodings = tokenizer.encode_batch([document.text for document in documents], add_special_tokens=False)
    return [np.array([*encoding.ids, end], np.int32) for encoding in encodings]


def end_of_text(tokenizer: Tokenizer) -> int:
    """The token id of `END_OF_TEXT` in this vocabulary."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    assert end is not None
    return end
