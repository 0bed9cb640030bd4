"""Vocabularies as data: the tokens, how their texts spell bytes, and how a text is cut before merging."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gguf import TokenType

from checkpoints.errors import TokenizerError

Model = Literal["gpt2", "gemma4", "llama"]
"""Kinds of BPE, by their names in `tokenizer.ggml.model`. All merge pairs; they differ in what is merged:

gpt2: words that a pattern cuts out, byte by byte, with bytes written as printable characters (`BYTE_ALPHABET`).
gemma4: lines, character by character, with U+2581 for spaces; bytes of characters without a token are `<0xNN>`.
llama: whole texts, spelled as for gemma4; what SentencePiece calls BPE. Pairs merge in the order of tokens' scores.
"""

SPACE = "▁"
"""Stands for a space in tokens of the kinds gemma4 and llama."""


@dataclass(frozen=True)
class PreTokenizer:
    """How texts are cut into the words that BPE works on: what a name in `tokenizer.ggml.pre` says.

    Attributes:
        patterns: each cuts all pieces that the patterns before it left, into its matches and what lies in between.
        ignore_merges: whether a word that is a token stays whole, whatever the merges say.
        add_bos: whether texts start with the bos token if the file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "qwen2": PreTokenizer(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,),
    ),
    "qwen35": PreTokenizer(
        (_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES,),
    ),
    "llama-bpe": PreTokenizer(_LLAMA3, ignore_merges=True, add_bos=True),
    "glm4": PreTokenizer(_LLAMA3, ignore_merges=True),
    "deepseek-v3": PreTokenizer(
        (
            r"\p{N}{1,3}",
            "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
        ),
    ),
}
"""Name in a GGUF -> what it says. Sources: the models' tokenizer.json, and llama.cpp's `src/llama-vocab.cpp`."""


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE writes bytes as printable characters: GPT-2's `bytes_to_unicode`, read backwards."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_ALPHABET: Mapping[str, int] = _byte_alphabet()
"""Character -> the byte that it stands for in a token of the kind gpt2."""

BYTE_TOKENS: Mapping[str, int] = {f"<0x{byte:02X}>": byte for byte in range(256)}
"""Token -> the byte that it stands for in the kinds gemma4 and llama."""

CONTROL_TYPES = (TokenType.CONTROL, TokenType.UNKNOWN)


@dataclass(frozen=True)
class Vocabulary:
    """A BPE vocabulary as data.

    Attributes:
        tokens: id -> text: normal tokens as `model` spells them, control and user-defined tokens as they are.
        types: id -> kind (`gguf.TokenType`).
        merges: pairs of tokens, most important first.
        pre: a name in `PRE_TOKENIZERS`; None when the words are cut in a way that has no name, and for the models
            gemma4 and llama, which have no words.
        special_ids: role ("bos", "eos", "eot", "eom", "padding", ...) -> id.
        leading: tokens with which every text starts, such as a bos token; GLM has two.
        chat_template: a Jinja template, or None.
        model: the kind of BPE.
        scores: id -> score; None where merges alone are known. Only the model llama has them.
        space_prefix: whether a space is put before each stretch of text; only the model llama does so.
    """

    tokens: tuple[str, ...]
    types: tuple[TokenType, ...]
    merges: tuple[tuple[str, str], ...]
    pre: str | None
    special_ids: Mapping[str, int] = field(default_factory=dict)
    leading: tuple[int, ...] = ()
    chat_template: str | None = None
    model: Model = "gpt2"
    scores: tuple[float, ...] | None = None
    space_prefix: bool = False

    @property
    def byte_names(self) -> Mapping[str, int]:
        """Token -> byte; every byte must have one."""
        return BYTE_ALPHABET if self.model == "gpt2" else BYTE_TOKENS

    def check(self, where: str) -> None:
        """Raise `TokenizerError` unless every text can be encoded and every id is meant once."""
        counts = Counter(self.tokens)
        if twice := [token for token, count in counts.items() if count > 1]:
            raise TokenizerError(f"{where}: {len(twice)} tokens occur twice in the vocabulary: {twice[:10]}")
        if absent := [byte for name, byte in self.byte_names.items() if name not in counts]:
            raise TokenizerError(
                f"{where}: {len(absent)} of 256 bytes have no token, so not every text can be encoded: {absent[:10]}"
            )
        size = len(self.tokens)
        used = {**self.special_ids, **{f"leading {at}": i for at, i in enumerate(self.leading)}}
        if outside := {role: i for role, i in used.items() if not 0 <= i < size}:
            raise TokenizerError(f"{where}: special tokens {outside} are outside the vocabulary of {size}")

    def piece(self, i: int) -> bytes:
        """The bytes that token `i` stands for."""
        token, kind = self.tokens[i], self.types[i]
        if kind == TokenType.UNUSED:
            return b""
        if kind in CONTROL_TYPES or kind == TokenType.USER_DEFINED:
            return token.encode()
        if self.model != "gpt2":
            return bytes([BYTE_TOKENS[token]]) if kind == TokenType.BYTE else token.replace(SPACE, " ").encode()
        if any(char not in BYTE_ALPHABET for char in token):
            return token.encode()
        return bytes(BYTE_ALPHABET[char] for char in token)


_END_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

END_TEXTS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>"}  # Qwen, Llama
    | {"<eos>", "<end_of_turn>", "<turn|>", "<|tool_response>"}  # Gemma
    | {"<\uff5cend▁of▁sentence\uff5c>", "<EOT>", "[EOT]", "[EOS]", "<end_of_utterance>"}  # DeepSeek and others
    | {"<|fim_pad|>", "<|repo_name|>", "<|fim_repo|>", "<|file_sep|>"}
)
"""Tokens that end a turn or a document by their name alone, whatever the metadata say about them.

The list follows llama.cpp's detection of end-of-generation tokens (`src/llama-vocab.cpp`). `</s>` is one only where it
is a control token: elsewhere it is text.
"""


def end_ids(vocabulary: Vocabulary) -> frozenset[int]:
    """Tokens that end a turn or a document: those that have a role which says so, and those whose name does."""
    return named_ends(vocabulary) | {
        i
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in CONTROL_TYPES and (token in END_TEXTS or token == "</s>")
    }


def named_ends(vocabulary: Vocabulary) -> frozenset[int]:
    """The part of `end_ids` that has a role."""
    return frozenset(vocabulary.special_ids[role] for role in _END_ROLES if role in vocabulary.special_ids)
