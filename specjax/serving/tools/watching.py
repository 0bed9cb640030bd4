"""Ends a text that calls functions again and again."""

from __future__ import annotations

from collections.abc import Sequence

from checkpoints import TextTokenizer
from specjax.runtime.stop_strings import StopStrings
from specjax.serving.tools.call import CallFormat, Schemas
from specjax.serving.tools.splitting import CallDecoder

MOST_CALLS = 32
"""Calls of one answer, at most. A grammar of calls always allows one more, and a model may never stop by itself."""


class CallWatch(StopStrings):
    """Watches one text for strings that end it, and for more calls than an answer may have."""

    def __init__(
        self, tokenizer: TextTokenizer, strings: Sequence[str], form: CallFormat, schemas: Schemas, most: int
    ) -> None:
        """
        Args:
            tokenizer: the model's.
            strings: see `StopStrings`.
            form: how calls are written.
            schemas: of the functions that may be called.
            most: calls that the answer may have.
        """
        super().__init__(CallDecoder(tokenizer, form), strings, tokenizer.vocab_size)
        self._form, self._schemas, self._most = form, schemas, most

    def push(self, tokens: Sequence[int]) -> int | None:
        """See `StopStrings`; the first token with which there is a call too many ends the text as well."""
        ends: list[int] = []  # of the text after each token
        stopped = False
        for token in tokens:
            stopped = super().push([token]) is not None
            ends.append(len(self._text))
            if stopped:
                break
        if not self._over(self._text):  # looked at once: calls are not read again with every token
            return len(ends) if stopped else None
        last = next(place for place, end in enumerate(ends) if self._over(self._text[:end]))
        self._text, self._ended = self._text[: ends[last]], True
        return last + 1

    def _over(self, text: str) -> bool:
        if sum(map(text.count, self._form.openers)) <= self._most:
            return False  # long arguments of few calls are not read again and again
        first = min(at for opener in self._form.openers if (at := text.find(opener)) >= 0)
        calls = self._form.calls(text[first:], self._schemas)
        return calls is not None and len(calls) > self._most
