"""Text to token ids and back, for byte-level BPE vocabularies."""

from __future__ import annotations

import codecs
import functools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gguf import TokenType
from tokenizers import Tokenizer

from checkpoints.errors import TokenizerError

PRE_TOKENIZERS: Mapping[str, str] = {
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen35": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Name in a GGUF -> the pattern whose matches are the words that BPE works on (the models' tokenizer.json)."""


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes bytes as printable characters: GPT-2's `bytes_to_unicode`, read backwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = _byte_alphabet()
"""Character -> the byte that it stands for in a token's text."""


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary as data.

    Attributes:
        tokens: id -> text: normal tokens in the byte alphabet, all others as they are.
        types: id -> kind (`gguf.TokenType`).
        merges: pairs of tokens, most important first.
        pre: a name in `PRE_TOKENIZERS`, or None when the words are cut by a pattern that has no name.
        special_ids: role ("bos", "eos", "eot", "eom", "padding", ...) -> id.
        add_bos: whether a text starts with the bos token.
        chat_template: a Jinja template, or None.
    """

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str | None
    special_ids: Mapping[str, int] = field(default_factory=dict)
    add_bos: bool = False
    chat_template: str | None = None

    def check(self, where: str) -> None:
        """Raise `TokenizerError` unless every text can be encoded and every id is meant once."""
        counts = Counter(self.tokens)
        if twice := [token for token, count in counts.items() if count > 1]:
            raise TokenizerError(f"{where}: {len(twice)} tokens occur twice in the vocabulary: {twice[:10]}")
        if absent := [byte for char, byte in BYTE_ALPHABET.items() if char not in counts]:
            raise TokenizerError(
                f"{where}: {len(absent)} of 256 bytes have no token, so not every text can be encoded: {absent[:10]}"
            )
        size = len(self.tokens)
        if outside := {role: i for role, i in self.special_ids.items() if not 0 <= i < size}:
            raise TokenizerError(f"{where}: special tokens {outside} are outside the vocabulary of {size}")
        if self.add_bos and "bos" not in self.special_ids:
            raise TokenizerError(f"{where}: texts are to begin with a bos token, but none is named")


_CONTROL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)
_RAW_TYPES = (*_CONTROL_TYPES, TokenType.USER_DEFINED)
_END_ROLES = ("eos", "eot", "eom")
_END_TEXTS = ("<|im_end|>", "<|endoftext|>")
"""Control tokens that end a turn or a document, whatever the metadata say about them."""


class TextTokenizer:
    """Encodes and decodes text; made by `tokenizer_gguf.from_metadata` or `tokenizer_hf.from_directory`.

    Decoding works on bytes: every text comes back as it was, and ids that cut a character in two are no error.

    Attributes:
        vocabulary: the vocabulary as data.
        backend: the `tokenizers.Tokenizer` that does the encoding.
        eos_ids: tokens after which generation stops.
    """

    def __init__(self, vocabulary: Vocabulary, backend: Tokenizer, extra_eos_ids: Iterable[int] = ()) -> None:
        """
        Args:
            vocabulary: must agree with `backend` on every id.
            backend: its truncation and padding are switched off.
            extra_eos_ids: stop tokens that are known from elsewhere (`generation_config.json`).
        """
        backend.no_truncation()
        backend.no_padding()
        self.vocabulary = vocabulary
        self.backend = backend
        self._control = frozenset(i for i, kind in enumerate(vocabulary.types) if kind in _CONTROL_TYPES)
        by_role = {vocabulary.special_ids[role] for role in _END_ROLES if role in vocabulary.special_ids}
        by_text = {i for i in self._control if vocabulary.tokens[i] in _END_TEXTS}
        self.eos_ids = frozenset(by_role | by_text | set(extra_eos_ids))

    def __repr__(self) -> str:
        return (
            f"TextTokenizer(vocab_size={self.vocab_size}, pre={self.vocabulary.pre!r}, eos_ids={sorted(self.eos_ids)})"
        )

    @property
    def vocab_size(self) -> int:
        """V as far as tokens have names; a model may have more rows than that."""
        return len(self.vocabulary.tokens)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of `text`.

        Args:
            text: any text.
            special: recognise control tokens that are written out in the text, and begin with the bos token if the
                vocabulary asks for one. Without it the text is nothing but text.
        """
        if not special:
            return self._literal_backend.encode(text, add_special_tokens=False).ids
        ids = self.backend.encode(text, add_special_tokens=False).ids
        return [self.vocabulary.special_ids["bos"], *ids] if self.vocabulary.add_bos else ids

    def decode(self, ids: Iterable[int], special: bool = True) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: token ids.
            special: whether control tokens appear in the text.

        Raises:
            ValueError: an id outside the vocabulary.
        """
        return self.decode_bytes(ids, special).decode(errors="replace")

    def decode_bytes(self, ids: Iterable[int], special: bool = True) -> bytes:
        """The bytes of `ids`; see `decode`."""
        return b"".join(self._piece_of(int(i), special) for i in ids)

    def stream(self, special: bool = True) -> StreamDecoder:
        """A decoder for ids that come in portions."""
        return StreamDecoder(self, special)

    def _piece_of(self, i: int, special: bool) -> bytes:
        if not 0 <= i < self.vocab_size:
            raise ValueError(f"token id {i} is outside the vocabulary of {self.vocab_size}")
        return (
            b"" if i in self._control and not special else _piece(self.vocabulary.tokens[i], self.vocabulary.types[i])
        )

    @functools.cached_property
    def _literal_backend(self) -> Tokenizer:
        """A second backend: whether control tokens are recognised is a property of the object, not of the call."""
        backend = Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = True
        return backend


class StreamDecoder:
    """Text from ids that come in portions; a character whose bytes are not all there waits for the next portion."""

    def __init__(self, tokenizer: TextTokenizer, special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that is complete with these ids."""
        return self._decoder.decode(self._tokenizer.decode_bytes(ids, self._special))

    def flush(self) -> str:
        """What was held back, with U+FFFD for bytes that never became a character."""
        return self._decoder.decode(b"", final=True)


def _piece(token: str, kind: TokenType) -> bytes:
    if kind == TokenType.UNUSED:
        return b""
    if kind in _RAW_TYPES or any(char not in BYTE_ALPHABET for char in token):
        return token.encode()
    return bytes(BYTE_ALPHABET[char] for char in token)
