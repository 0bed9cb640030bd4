"""Where a text ends because of a string in it: found token by token, and cut exactly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class Decoding(Protocol):
    """Turns ids that come in portions into text, as `checkpoints.StreamDecoder` does."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that is complete with these ids."""
        ...

    def flush(self) -> str:
        """What was held back, when no more ids come."""
        ...


class StopStrings:
    """Watches the tokens of one text for strings that end it. A `specjax.runtime.request.StopWatch`.

    Strings may span tokens, and a token may go on after one. Text that may still turn out to begin a stop string is
    held back, so that what has been shown is never taken back.
    """

    def __init__(self, decoder: Decoding, strings: Sequence[str], vocab_size: int) -> None:
        """
        Args:
            decoder: turns the tokens into text; used up.
            strings: each not empty.
            vocab_size: tokens beyond it stand for no text.
        """
        self._decoder = decoder
        self._strings = tuple(strings)
        self._vocab_size = vocab_size
        self._longest = max(map(len, self._strings), default=0)
        self._text = ""
        self._shown = 0
        self._ended = False

    def push(self, tokens: Sequence[int]) -> int | None:
        """How many of these tokens belong to the text if one of them completes a stop string; None if none does."""
        for count, token in enumerate(tokens, 1):
            if token < self._vocab_size and self._grown(self._decoder.push([token])):
                return count
        return None

    def shown(self) -> str:
        """Text that has become certain since the last call."""
        end = len(self._text) - (0 if self._ended else self._doubtful())
        text, self._shown = self._text[self._shown : end], max(end, self._shown)
        return text

    def rest(self) -> str:
        """Text that was held back, when no more tokens come."""
        if not self._ended:
            self._grown(self._decoder.flush())
            self._ended = True
        return self.shown()

    def _grown(self, piece: str) -> bool:
        """Add text. If it completes a stop string, cut the text before the first one and return True."""
        begin = max(0, len(self._text) - self._longest + 1)
        self._text += piece
        found = [at for string in self._strings if (at := self._text.find(string, begin)) >= 0]
        if found:
            self._text, self._ended = self._text[: min(found)], True
        return bool(found)

    def _doubtful(self) -> int:
        """Characters at the end that may begin a stop string."""
        return max((_begun(string, self._text) for string in self._strings), default=0)


def _begun(string: str, text: str) -> int:
    """Characters at the end of a text with which a string that is not in it may begin."""
    lengths = range(min(len(string) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(string[:length])), 0)


def cut_at(text: str, strings: Sequence[str]) -> str:
    """The text before the first of the strings; all of it if there is none."""
    return text[: min((at for string in strings if (at := text.find(string)) >= 0), default=len(text))]
