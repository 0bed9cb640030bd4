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
        """See `StopStrings`; also ends the text with these tokens if there is a call too many by now."""
        end = super().push(tokens)
        return len(tokens) if end is None and self._over() else end

    def _over(self) -> bool:
        if sum(map(self._text.count, self._form.openers)) <= self._most:
            return False  # long arguments of few calls are not read again and again
        first = min(at for opener in self._form.openers if (at := self._text.find(opener)) >= 0)
        calls = self._form.calls(self._text[first:], self._schemas)
        return calls is not None and len(calls) > self._most
