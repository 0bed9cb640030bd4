"""The `tokenizers.Tokenizer` that a vocabulary describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from checkpoints.errors import TokenizerError
from checkpoints.tokenizers.vocabulary import CONTROL_TYPES, PRE_TOKENIZERS, SPACE, Vocabulary


def backend_of(vocabulary: Vocabulary, where: str) -> Tokenizer:
    """Build the backend; raise `TokenizerError` if merges do not fit the tokens, or the pre-tokenizer has no name."""
    byte_level = vocabulary.model == "gpt2"
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    if byte_level and vocabulary.pre is None:
        raise TokenizerError(f"{where}: the pre-tokenizer has no name; named are {', '.join(PRE_TOKENIZERS)}")
    ignore_merges = vocabulary.pre is not None and PRE_TOKENIZERS[vocabulary.pre].ignore_merges
    try:
        model = BPE(ids, list(vocabulary.merges), byte_fallback=not byte_level, ignore_merges=ignore_merges)
    except Exception as error:  # the bindings raise plain Exception
        raise TokenizerError(f"{where}: the merges do not fit the vocabulary: {error}") from error
    backend = Tokenizer(model)
    if vocabulary.pre is not None:
        backend.pre_tokenizer = pre_tokenizer(vocabulary.pre)
        backend.decoder = decoders.ByteLevel()
    else:
        spaces = normalizers.Replace(" ", SPACE)
        prefix: list[Any] = [normalizers.Prepend(SPACE)] if vocabulary.space_prefix else []
        backend.normalizer = normalizers.Sequence([*prefix, spaces]) if prefix else spaces
        if vocabulary.model == "gemma4":
            backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n+"), behavior="isolated")
        backend.decoder = decoders.Sequence(
            [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
            + ([decoders.Strip(" ", 1, 0)] if vocabulary.space_prefix else [])
        )
    if vocabulary.leading:
        ids_of = {vocabulary.tokens[i]: i for i in vocabulary.leading}
        leading = [vocabulary.tokens[i] for i in vocabulary.leading]
        backend.post_processor = processors.TemplateProcessing([*leading, "$A"], special_tokens=list(ids_of.items()))
    entries = list(zip(vocabulary.tokens, vocabulary.types, strict=True))
    control = [token for token, kind in entries if kind in CONTROL_TYPES]
    backend.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    user_defined = [token for token, kind in entries if kind == TokenType.USER_DEFINED]
    backend.add_tokens([AddedToken(token, normalized=False) for token in user_defined])
    return backend


def pre_tokenizer(name: str) -> Any:
    """What cuts texts into words of byte-level BPE; `name` is one of `PRE_TOKENIZERS`."""
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in PRE_TOKENIZERS[name].patterns]
    return pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def merges_of_scores(
    tokens: Sequence[str], types: Sequence[TokenType], scores: Sequence[float]
) -> tuple[tuple[str, str], ...]:
    """The merges that a SentencePiece vocabulary implies.

    SentencePiece merges any two neighbours that together are a token, the token of the highest score first
    (`src/bpe_model.cc`); which of several splits of that token comes first decides nothing but equal scores.
    """
    mergeable = {
        token: score
        for token, kind, score in zip(tokens, types, scores, strict=True)
        if kind in (TokenType.NORMAL, TokenType.USER_DEFINED)
    }
    splits = [
        (-score, token[:cut], token[cut:])
        for token, score in mergeable.items()
        for cut in range(1, len(token))
        if token[:cut] in mergeable and token[cut:] in mergeable
    ]
    splits.sort(key=lambda split: split[0])  # stable: by id where scores are equal
    return tuple((left, right) for _, left, right in splits)
