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
        self._openers = 0  # that have been seen

    def _grown(self, piece: str) -> bool:
        """See `StopStrings`; a call too many ends the text as well, and is not cut."""
        before = len(self._text)
        if super()._grown(piece):
            return True
        for opener in self._form.openers:
            self._openers += self._text.count(opener, max(0, before - len(opener) + 1))
        return self._openers > self._most and self._over()

    def _over(self) -> bool:
        first = min(at for opener in self._form.openers if (at := self._text.find(opener)) >= 0)
        calls = self._form.calls(self._text[first:], self._schemas)
        return calls is not None and len(calls) > self._most
