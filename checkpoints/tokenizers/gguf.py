"""A tokenizer from the metadata of a GGUF file, and back.

The words are cut as llama.cpp cuts them (`src/llama-vocab.cpp`). Like llama.cpp, and unlike Hugging Face's
tokenizer.json for the same models, nothing normalises the text to NFC first: the file has no place to say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, get_args

from gguf import TokenType

from checkpoints.errors import DamagedTokenizerError, TokenizerError
from checkpoints.gguf.values import value_of
from checkpoints.tokenizers.backend import backend_of, merges_of_scores
from checkpoints.tokenizers.tokenizer import TextTokenizer
from checkpoints.tokenizers.vocabulary import END_TEXTS, PRE_TOKENIZERS, Model, Vocabulary, end_ids, named_ends

_ALIASES = {"deepseek-r1-qwen": "qwen2", "llama3": "llama-bpe", "llama-v3": "llama-bpe"}
_PREFIX = "tokenizer.ggml."
_ID_SUFFIX = "_token_id"
_LEADING = "specjax.leading_token_ids"
"""The tokens before every text, if there are several. llama.cpp does not know this key, and adds none of them."""
_LOWEST_SCORE = -1e9
_DEFAULT_IDS: Mapping[Model, Mapping[str, int]] = {"gpt2": {}, "gemma4": {}, "llama": {"bos": 1, "eos": 2}}


def from_metadata(metadata: Mapping[str, Any], where: str) -> TextTokenizer:
    """The tokenizer of a GGUF file.

    Args:
        metadata: every key of the file.
        where: its name, for messages.

    Raises:
        TokenizerError: there is none, it is not BPE, its pre-tokenizer is not known (the message names the known ones),
            or its parts contradict each other.
        DamagedTokenizerError: a key has a value of another type, or of another length than the list of tokens.
    """
    model = metadata.get(_PREFIX + "model")
    if model is None or _PREFIX + "tokens" not in metadata:
        raise TokenizerError(f"{where}: no tokenizer: the file has no {_PREFIX}model with {_PREFIX}tokens")
    if model not in get_args(Model):
        raise TokenizerError(f"{where}: tokenizer model {model!r} is not known; known are {', '.join(get_args(Model))}")
    pre = _pre_tokenizer_name(metadata, where) if model == "gpt2" else None
    value = partial(value_of, metadata, where=where, error=DamagedTokenizerError)
    tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(value(_PREFIX + "tokens", list[str])))
    codes = _per_token(metadata, "token_type", int, len(tokens), where) or [TokenType.NORMAL] * len(tokens)
    types = tuple(_token_type(token, code, where) for token, code in zip(tokens, codes, strict=True))
    scores = tuple(_per_token(metadata, "scores", float, len(tokens), where) or ()) if model == "llama" else None
    if scores is not None:
        if not scores:
            raise TokenizerError(f"{where}: the tokenizer lacks {_PREFIX}scores")
        merges = merges_of_scores(tokens, types, scores)
    elif _PREFIX + "merges" in metadata:
        merges = tuple(_merge(text, where) for text in value(_PREFIX + "merges", list[str]))
    else:
        raise TokenizerError(f"{where}: the tokenizer lacks {_PREFIX}merges")
    special_ids = {**_DEFAULT_IDS[model]} | {
        key.removeprefix(_PREFIX).removesuffix(_ID_SUFFIX): value(key, int)
        for key in metadata
        if key.startswith(_PREFIX) and key.endswith(_ID_SUFFIX)
    }
    vocabulary = Vocabulary(
        tokens=tokens,
        types=types,
        merges=merges,
        pre=pre,
        special_ids=special_ids,
        leading=_leading(metadata, model, pre, special_ids, where),
        chat_template=value("tokenizer.chat_template", str),
        model=model,
        scores=scores,
        space_prefix=model == "llama" and metadata.get(_PREFIX + "add_space_prefix", True),
    )
    return from_vocabulary(vocabulary, where)


def from_vocabulary(vocabulary: Vocabulary, where: str = "vocabulary") -> TextTokenizer:
    """The tokenizer that a vocabulary with a named pre-tokenizer describes; raises `TokenizerError` as above."""
    vocabulary.check(where)
    return TextTokenizer(vocabulary, backend_of(vocabulary, where))


def to_metadata(tokenizer: TextTokenizer, vocab_size: int) -> dict[str, Any]:
    """The metadata with which llama.cpp builds the same tokenizer.

    Args:
        tokenizer: any tokenizer whose pre-tokenizer has a name.
        vocab_size: V of the model; ids without a token become unused ones.

    Raises:
        TokenizerError: a GGUF cannot say how texts are cut or merged, or there are more tokens than rows.
    """
    vocabulary = tokenizer.vocabulary
    if vocabulary.model == "gpt2" and vocabulary.pre is None:
        raise TokenizerError(
            f"this pre-tokenizer cannot be written to a GGUF: its pattern is none of {', '.join(PRE_TOKENIZERS)}"
        )
    if vocabulary.model == "llama" and vocabulary.scores is None:
        raise TokenizerError("a SentencePiece vocabulary without scores cannot be written to a GGUF: it has no merges")
    if not vocabulary.merges:
        raise TokenizerError("a vocabulary without merges cannot be written to a GGUF: llama.cpp does not load it")
    padding = vocab_size - len(vocabulary.tokens)
    if padding < 0:
        raise TokenizerError(f"the tokenizer has {len(vocabulary.tokens)} tokens, but the model only {vocab_size} rows")
    names = [f"[PAD{i}]" for i in range(len(vocabulary.tokens), vocab_size)]
    metadata: dict[str, Any] = {
        _PREFIX + "model": vocabulary.model,
        _PREFIX + "tokens": [*vocabulary.tokens, *names],
        _PREFIX + "token_type": [int(kind) for kind in vocabulary.types] + [int(TokenType.UNUSED)] * padding,
        _PREFIX + "add_bos_token": len(vocabulary.leading) == 1,
    }
    if len(vocabulary.leading) > 1:
        metadata[_LEADING] = list(vocabulary.leading)
    if vocabulary.pre is not None:
        metadata[_PREFIX + "pre"] = vocabulary.pre
    if vocabulary.scores is None:
        metadata[_PREFIX + "merges"] = [f"{left} {right}" for left, right in vocabulary.merges]
    else:
        metadata[_PREFIX + "scores"] = [*vocabulary.scores, *[_LOWEST_SCORE] * padding]
        metadata[_PREFIX + "add_space_prefix"] = vocabulary.space_prefix
    metadata |= {f"{_PREFIX}{role}{_ID_SUFFIX}": i for role, i in _roles(tokenizer).items()}
    if vocabulary.chat_template is not None:
        metadata["tokenizer.chat_template"] = vocabulary.chat_template
    return metadata


def _roles(tokenizer: TextTokenizer) -> dict[str, int]:
    """Roles of special tokens. Ends of generation get one where readers would not know them by their texts."""
    roles = dict(tokenizer.vocabulary.special_ids)
    if tokenizer.vocabulary.leading:
        roles["bos"] = tokenizer.vocabulary.leading[0]
    known = end_ids(tokenizer.vocabulary)
    unnamed = sorted(tokenizer.eos_ids - named_ends(tokenizer.vocabulary), key=lambda i: (i in known, i))
    for role in ("eos", "eot", "eom"):
        if role not in roles and unnamed and (role == "eos" or unnamed[0] not in known):
            roles[role] = unnamed.pop(0)
    return roles


def _pre_tokenizer_name(metadata: Mapping[str, Any], where: str) -> str:
    pre = str(metadata.get(_PREFIX + "pre"))
    pre = _ALIASES.get(pre, pre)
    if pre not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"{where}: pre-tokenizer {pre!r} is not known; known are {', '.join([*PRE_TOKENIZERS, *_ALIASES])}"
        )
    return pre


def _leading(
    metadata: Mapping[str, Any], model: Model, pre: str | None, special_ids: Mapping[str, int], where: str
) -> tuple[int, ...]:
    """What texts start with. As in llama.cpp it is a bos token at most, unless the key of this project says more.

    Gemma 4 always has one, whatever early files say; others by the file, else by their kind.
    """
    if _LEADING in metadata:
        return tuple(value_of(metadata, _LEADING, list[int], where, DamagedTokenizerError))
    by_kind = PRE_TOKENIZERS[pre].add_bos if pre else True
    if model != "gemma4" and not metadata.get(_PREFIX + "add_bos_token", by_kind):
        return ()
    if "bos" not in special_ids:
        raise TokenizerError(f"{where}: texts are to begin with a bos token, but none is named")
    return (special_ids["bos"],)


def _per_token(metadata: Mapping[str, Any], key: str, kind: type, size: int, where: str) -> list[Any] | None:
    values = value_of(metadata, _PREFIX + key, list[kind], where, DamagedTokenizerError)  # type: ignore[valid-type]
    if values is not None and len(values) != size:
        raise DamagedTokenizerError(f"{where}: {size} tokens, but {len(values)} {key.replace('_', ' ').rstrip('s')}s")
    return values


def _token_type(token: str, code: int, where: str) -> TokenType:
    """As the file says, but that converters leave some tokens which end a generation among the ordinary ones."""
    try:
        return TokenType.CONTROL if token in END_TEXTS else TokenType(code)
    except ValueError:
        raise TokenizerError(f"{where}: unknown token type {code}") from None


def _merge(text: str, where: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right):
        raise DamagedTokenizerError(f"{where}: merge {text!r} is not two tokens with a space in between")
    return left, right
