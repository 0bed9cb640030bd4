"""A text that may call functions, as it comes: what is shown of it, and the calls at its end."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from checkpoints import TextTokenizer
from specjax.serving.tools.call import Call, CallFormat, Schemas


class CallDecoder:
    """Turns tokens into text, with those control tokens that belong to calls. Stands for a `StreamDecoder`."""

    def __init__(self, tokenizer: TextTokenizer, form: CallFormat) -> None:
        """
        Args:
            tokenizer: the model's.
            form: says which control tokens belong to calls.
        """
        self._tokenizer = tokenizer
        tokens = tokenizer.vocabulary.tokens
        self._marks = {tokens.index(mark) for mark in form.marks if mark in tokens} - tokenizer.eos_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, ids: Iterable[int]) -> str:
        """The text that is complete with these ids."""
        pieces = (self._tokenizer.decode_bytes([each], special=each in self._marks) for each in ids)
        return self._decoder.decode(b"".join(pieces))

    def flush(self) -> str:
        """What was held back, with U+FFFD for bytes that never became a character."""
        return self._decoder.decode(b"", final=True)


class Splitter:
    """Takes a text in pieces, and tells what of it is no call."""

    def __init__(self, form: CallFormat, schemas: Schemas) -> None:
        """
        Args:
            form: how calls are written.
            schemas: of the functions that may be called.
        """
        self._form, self._schemas = form, schemas
        self._held = ""
        self._calling = False

    def push(self, piece: str) -> str:
        """What can be shown with this piece; what may be a call, or begin one, is held back."""
        self._held += piece
        if self._calling:
            return ""
        found = [at for opener in self._form.openers if (at := self._held.find(opener)) >= 0]
        self._calling = bool(found)
        end = min(found) if found else len(self._held) - self._doubtful()
        shown, self._held = self._held[:end], self._held[end:]
        return shown

    def end(self) -> tuple[str, list[Call]]:
        """What is left to be shown, and the calls."""
        calls = self._form.calls(self._held, self._schemas) if self._calling else None
        return ("", calls) if calls is not None else (self._held, [])

    def _doubtful(self) -> int:
        """Characters at the end that may begin an opener."""
        longest = max(map(len, self._form.openers)) - 1
        return next(
            (
                n
                for n in range(min(longest, len(self._held)), 0, -1)
                if any(opener.startswith(self._held[-n:]) for opener in self._form.openers)
            ),
            0,
        )
