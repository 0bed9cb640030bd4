"""Text to token ids and back, for BPE vocabularies."""

from __future__ import annotations

import codecs
import functools
from collections.abc import Iterable

from tokenizers import Tokenizer

from checkpoints.tokenizers.vocabulary import CONTROL_TYPES, Vocabulary, end_ids

LONG = 2**14
"""Characters from which on a text is encoded as a batch of one: only then do other threads run meanwhile."""

MOST_SHORTENED = 3
"""Composing characters (NFC), as some tokenizers do before they encode, leaves at least a third of a text's bytes."""


class TextTokenizer:
    """Encodes and decodes text; made by `tokenizer_gguf.from_metadata` or `tokenizer_hf.from_directory`.

    Decoding works on bytes: every text comes back as it was, and ids that cut a character in two are no error. The
    kinds that write spaces as U+2581 cannot tell the two apart, and a space that encoding put before a text stays.

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
        self._control = frozenset(i for i, kind in enumerate(vocabulary.types) if kind in CONTROL_TYPES)
        self.eos_ids = end_ids(vocabulary) | set(extra_eos_ids)

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
            special: recognise control tokens that are written out in the text, and begin with those that stand before
                every text. Without it the text is nothing but text.
        """
        backend, leading = (self.backend, self.vocabulary.leading) if special else (self._literal_backend, ())
        if len(text) < LONG:
            return [*leading, *backend.encode(text, add_special_tokens=False).ids]
        (encoded,) = backend.encode_batch_fast([text], add_special_tokens=False)
        return [*leading, *encoded.ids]

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that a text has at least. It takes no time, as encoding a long text does."""
        return len(text.encode(errors="replace")) // (MOST_SHORTENED * self._longest)

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
        return b"" if i in self._control and not special else self.vocabulary.piece(i)

    @functools.cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max(len(self.vocabulary.piece(token)) for token in range(self.vocab_size))

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
