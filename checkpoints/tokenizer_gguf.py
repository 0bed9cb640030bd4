"""A tokenizer from the metadata of a GGUF file, and back.

The words are cut as llama.cpp cuts them (`src/llama-vocab.cpp`). Like llama.cpp, and unlike Hugging Face's
tokenizer.json for the same models, nothing normalises the text to NFC first: the file has no place to say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from checkpoints.errors import TokenizerError
from checkpoints.tokenizer import PRE_TOKENIZERS, TextTokenizer, Vocabulary

_ALIASES = {"deepseek-r1-qwen": "qwen2"}
_MODEL = "gpt2"
_PREFIX = "tokenizer.ggml."
_ID_SUFFIX = "_token_id"


def from_metadata(metadata: Mapping[str, Any], where: str) -> TextTokenizer:
    """The tokenizer of a GGUF file.

    Args:
        metadata: every key of the file.
        where: its name, for messages.

    Raises:
        TokenizerError: there is none, it is not byte-level BPE, its pre-tokenizer is not known (the message names the
            known ones), or its parts contradict each other.
    """
    model = metadata.get(_PREFIX + "model")
    if model is None or _PREFIX + "tokens" not in metadata:
        raise TokenizerError(f"{where}: no tokenizer: the file has no {_PREFIX}model with {_PREFIX}tokens")
    if model != _MODEL:
        raise TokenizerError(f"{where}: tokenizer model {model!r} is not known; known is {_MODEL!r} (byte-level BPE)")
    if _PREFIX + "merges" not in metadata:
        raise TokenizerError(f"{where}: the tokenizer lacks {_PREFIX}merges")
    pre = str(metadata.get(_PREFIX + "pre"))
    pre = _ALIASES.get(pre, pre)
    if pre not in PRE_TOKENIZERS:
        raise TokenizerError(
            f"{where}: pre-tokenizer {pre!r} is not known; known are {', '.join([*PRE_TOKENIZERS, *_ALIASES])}"
        )
    tokens = tuple(token or f"[EMPTY_{i}]" for i, token in enumerate(metadata[_PREFIX + "tokens"]))
    types = metadata.get(_PREFIX + "token_type", [TokenType.NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise TokenizerError(f"{where}: {len(tokens)} tokens, but {len(types)} token types")
    vocabulary = Vocabulary(
        tokens=tokens,
        types=tuple(_token_type(code, where) for code in types),
        merges=tuple(_merge(text, where) for text in metadata[_PREFIX + "merges"]),
        pre=pre,
        special_ids={
            key.removeprefix(_PREFIX).removesuffix(_ID_SUFFIX): value
            for key, value in metadata.items()
            if key.startswith(_PREFIX) and key.endswith(_ID_SUFFIX)
        },
        add_bos=metadata.get(_PREFIX + "add_bos_token", False),
        chat_template=metadata.get("tokenizer.chat_template"),
    )
    return from_vocabulary(vocabulary, where)


def from_vocabulary(vocabulary: Vocabulary, where: str = "vocabulary") -> TextTokenizer:
    """The tokenizer that a vocabulary with a named pre-tokenizer describes; raises `TokenizerError` as above."""
    vocabulary.check(where)
    if vocabulary.pre is None:
        raise TokenizerError(f"{where}: the pre-tokenizer has no name; named are {', '.join(PRE_TOKENIZERS)}")
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    try:
        backend = Tokenizer(BPE(vocab=ids, merges=list(vocabulary.merges)))
    except Exception as error:  # the bindings raise plain Exception
        raise TokenizerError(f"{where}: the merges do not fit the vocabulary: {error}") from error
    words = pre_tokenizers.Split(Regex(PRE_TOKENIZERS[vocabulary.pre]), behavior="isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    backend.decoder = decoders.ByteLevel()
    entries = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    control = [token for token, kind in entries if kind in (TokenType.CONTROL, TokenType.UNKNOWN)]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    user_defined = [token for token, kind in entries if kind == TokenType.USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    return TextTokenizer(vocabulary, backend)


def to_metadata(tokenizer: TextTokenizer, vocab_size: int) -> dict[str, Any]:
    """The metadata with which llama.cpp builds the same tokenizer.

    Args:
        tokenizer: any tokenizer whose pre-tokenizer has a name.
        vocab_size: V of the model; ids without a token become unused ones.

    Raises:
        TokenizerError: the pre-tokenizer has no name, there are no merges, or there are more tokens than rows.
    """
    vocabulary = tokenizer.vocabulary
    if vocabulary.pre is None:
        raise TokenizerError(
            f"this pre-tokenizer cannot be written to a GGUF: its pattern is none of {', '.join(PRE_TOKENIZERS)}"
        )
    if not vocabulary.merges:
        raise TokenizerError("a vocabulary without merges cannot be written to a GGUF: llama.cpp does not load it")
    padding = vocab_size - len(vocabulary.tokens)
    if padding < 0:
        raise TokenizerError(f"the tokenizer has {len(vocabulary.tokens)} tokens, but the model only {vocab_size} rows")
    special_ids = dict(vocabulary.special_ids)
    unnamed = sorted(tokenizer.eos_ids - set(special_ids.values()))
    for role in ("eos", "eot", "eom"):
        if unnamed and role not in special_ids:
            special_ids[role] = unnamed.pop(0)
    names = [f"[PAD{i}]" for i in range(len(vocabulary.tokens), vocab_size)]
    metadata: dict[str, Any] = {
        _PREFIX + "model": _MODEL,
        _PREFIX + "pre": vocabulary.pre,
        _PREFIX + "tokens": [*vocabulary.tokens, *names],
        _PREFIX + "token_type": [int(kind) for kind in vocabulary.types] + [int(TokenType.UNUSED)] * padding,
        _PREFIX + "merges": [f"{left} {right}" for left, right in vocabulary.merges],
        _PREFIX + "add_bos_token": vocabulary.add_bos,
    }
    metadata |= {f"{_PREFIX}{role}{_ID_SUFFIX}": i for role, i in special_ids.items()}
    if vocabulary.chat_template is not None:
        metadata["tokenizer.chat_template"] = vocabulary.chat_template
    return metadata


def _token_type(code: int, where: str) -> TokenType:
    try:
        return TokenType(code)
    except ValueError:
        raise TokenizerError(f"{where}: unknown token type {code}") from None


def _merge(text: str, where: str) -> tuple[str, str]:
    left, space, right = text.partition(" ")
    if not (left and space and right):
        raise TokenizerError(f"{where}: merge {text!r} is not two tokens with a space in between")
    return left, right
