"""Which of the target's tokens a trimmed drafter scores: lists in files, and the lowest ids.

A list is a JSON file, so that people can read, diff and make it, and so that it can say which vocabulary it is for:

    {"draft_vocabulary": 1, "vocab_size": 248320, "vocabulary": "0123456789abcdef", "origin": "...", "tokens": [0, 11]}

`tokens` are token ids, the most frequent one first. `vocab_size` is V of the model. `vocabulary` is a fingerprint of
the tokens' texts, or null if there was no tokenizer. `origin` says in words where the list comes from.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import TokenType
from jaxtyping import Int

from checkpoints import TextTokenizer
from checkpoints.atomic import write_text
from checkpoints.tokenizers.vocabulary import CONTROL_TYPES
from specjax.errors import SpecjaxError

DraftVocabularySource = int | str | Path
"""A file with a list of tokens; or a number N: the tokens with the N lowest ids, see `specjax.load`."""

VERSION = 1
_KINDS = (*CONTROL_TYPES, TokenType.USER_DEFINED)
_EXAMPLES = 3


@dataclass(frozen=True)
class TokenList:
    """What a file says.

    Attributes:
        vocab_size, vocabulary, origin, tokens: see above.
    """

    vocab_size: int
    vocabulary: str | None
    origin: str
    tokens: tuple[int, ...]

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        write_text(path, json.dumps({"draft_vocabulary": VERSION, **asdict(self)}) + "\n")


def read_token_list(path: Path) -> TokenList:
    """
    Raises:
        SpecjaxError: the file cannot be read, or holds no list of tokens.
    """
    hint = "`specjax vocabulary` writes such lists"
    try:
        document: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise SpecjaxError(f"{path} cannot be read ({error.strerror}); {hint}") from error
    except ValueError as error:  # of JSON and of UTF-8
        raise SpecjaxError(f"{path} is not JSON ({error}); {hint}") from error
    if not isinstance(document, dict) or document.get("draft_vocabulary") != VERSION:
        raise SpecjaxError(f'{path} is no list of tokens: it is no object with "draft_vocabulary": {VERSION}; {hint}')
    tokens, size, vocabulary = (document.get(key) for key in ("tokens", "vocab_size", "vocabulary"))
    if not isinstance(tokens, list) or not tokens or not all(type(token) is int for token in tokens):
        raise SpecjaxError(f'{path}: "tokens" must be a list of token ids, with one at least; {hint}')
    if type(size) is not int or not (vocabulary is None or isinstance(vocabulary, str)):
        raise SpecjaxError(f'{path}: "vocab_size" must be a number, and "vocabulary" a text or null; {hint}')
    return TokenList(size, vocabulary, str(document.get("origin", "")), tuple(tokens))


def draft_tokens(
    source: DraftVocabularySource, tokenizer: TextTokenizer | None, vocab_size: int
) -> Int[np.ndarray, "M"]:
    """The tokens of a source in ascending order, with those that must not be missing.

    Args:
        source: see `DraftVocabularySource`.
        tokenizer: of the target, if it has one.
        vocab_size: V of the target.

    Raises:
        SpecjaxError: the source is neither file nor number; the number is out of range; the file cannot be read, or is
            not for this target; all that is wrong is named.
    """
    if not isinstance(source, str | Path):
        lowest = most_frequent(np.zeros(vocab_size, np.int64), tokenizer, _number(source))
        return np.array(lowest, np.int32)
    path = Path(source)
    given = read_token_list(path)
    if wrong := list(_mismatches(given, fingerprint(tokenizer), vocab_size)):
        raise SpecjaxError(f"{path} is no draft vocabulary for this model: {'; '.join(wrong)}")
    return np.array(sorted({*given.tokens, *indispensable(tokenizer)}), np.int32)


def most_frequent(counts: Int[np.ndarray, "V"], tokenizer: TextTokenizer | None, size: int) -> tuple[int, ...]:
    """So many tokens, those that must not be missing included, by how often they were counted.

    Tokens that were counted equally often come in the order of their ids.

    Raises:
        SpecjaxError: the size is out of range.
    """
    always = indispensable(tokenizer)
    _check_size(size, always, len(counts))
    order = np.argsort(-counts, kind="stable").tolist()
    others = [token for token in order if token not in always][: size - len(always)]
    chosen = always.union(others)
    return tuple(token for token in order if token in chosen)


def indispensable(tokenizer: TextTokenizer | None) -> frozenset[int]:
    """Tokens that every draft vocabulary has: those that end a text, and all special ones; none without tokenizer."""
    if tokenizer is None:
        return frozenset()
    vocabulary = tokenizer.vocabulary
    special = (i for i, kind in enumerate(vocabulary.types) if kind in _KINDS)
    return frozenset({*special, *tokenizer.eos_ids, *vocabulary.special_ids.values(), *vocabulary.leading})


def fingerprint(tokenizer: TextTokenizer | None) -> str | None:
    """Marks by which one vocabulary is told from another; ids that only fill it up do not count."""
    if tokenizer is None:
        return None
    vocabulary = tokenizer.vocabulary
    pairs = zip(vocabulary.tokens, vocabulary.types, strict=True)
    names = ["" if kind == TokenType.UNUSED else token for token, kind in pairs]
    while names and not names[-1]:
        names.pop()
    return hashlib.sha256(json.dumps(names).encode()).hexdigest()[:16]


def _number(source: Any) -> int:
    try:
        if not isinstance(source, bool):
            return operator.index(source)
    except TypeError:
        pass
    raise SpecjaxError(f"the draft vocabulary is {source!r}; give a number of tokens, or a file with a list of them")


def _check_size(size: int, always: frozenset[int], vocab_size: int) -> None:
    if not 1 <= size <= vocab_size:
        raise SpecjaxError(
            f"a draft vocabulary of {size} tokens is asked for; give a number from 1 to the {vocab_size} of the model"
        )
    if size < len(always):
        raise SpecjaxError(
            f"a draft vocabulary of {size} tokens is asked for; it always has the {len(always)} special tokens of the"
            " model: give a larger number"
        )


def _mismatches(given: TokenList, vocabulary: str | None, vocab_size: int) -> Iterable[str]:
    if given.vocabulary and vocabulary:
        if given.vocabulary != vocabulary:
            yield (
                f"it was made for another vocabulary ({given.vocabulary}, {given.vocab_size} tokens; the model's is"
                f" {vocabulary}, {vocab_size} tokens)"
            )
    elif given.vocab_size != vocab_size:
        yield f"it was made for a vocabulary of {given.vocab_size} tokens, and the model has {vocab_size}"
    if outside := [token for token in given.tokens if not 0 <= token < vocab_size]:
        yield f"{len(outside)} ids are outside the vocabulary of {vocab_size}: {_some(outside)}"
    if twice := [token for token, count in Counter(given.tokens).items() if count > 1]:
        yield f"{len(twice)} ids occur more than once: {_some(twice)}"


def _some(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:_EXAMPLES])) + (", ..." if len(ids) > _EXAMPLES else "")
