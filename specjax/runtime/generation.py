"""What a user gets: a generated text with its figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

from specjax.decoding.stats import DecodeStats
from specjax.runtime.request import FinishReason, Timings, TokenLogprobs
from specjax.traces.html import BOX, coloured, legend
from specjax.traces.trace import Trace


@dataclass
class Generation:
    """A generated text.

    Attributes:
        text: the generated text, without the prompt, without control tokens, and without a stop string.
        tokens: the generated token ids; with a stop string, those that it ends in too.
        prompt_tokens: the prompt's token ids.
        finish_reason: "eos", "stop" (a stop string), "length" (max_tokens), "context" (no more room) or, of a job of an
            engine, "cancelled".
        stats: how many tokens were drafted and accepted.
        timings: seconds spent, of the first step that served the prompt to the last one.
        margins: for each token, the largest logit minus the second largest where it was chosen; None unless asked for.
        logprobs: log-probabilities at each token, if asked for.
        trace: what every round drafted and accepted, if asked for.
    """

    text: str
    tokens: list[int]
    prompt_tokens: list[int]
    finish_reason: FinishReason
    stats: DecodeStats
    timings: Timings
    margins: list[float] | None = field(default=None, repr=False)
    logprobs: list[TokenLogprobs] | None = field(default=None, repr=False)
    trace: Trace | None = field(default=None, repr=False)

    @property
    def tokens_per_second(self) -> float:
        """Tokens that rounds emitted, per second of all rounds."""
        return self.stats.tokens / self.timings.decode if self.timings.decode else 0.0

    def summary(self) -> dict[str, Any]:
        """The figures, as plain numbers."""
        return {
            "tokens": len(self.tokens),
            "finish_reason": self.finish_reason,
            "rounds": self.stats.rounds,
            "tokens_per_round": round(self.stats.tokens_per_round, 3),
            "drafts_per_round": round(self.stats.drafts_per_round, 3),
            "acceptance_by_position": [round(share, 3) for share in self.stats.acceptance_by_position],
            "tokens_per_second": round(self.tokens_per_second, 1),
        }

    def __repr__(self) -> str:
        figures = ", ".join(f"{name}={value}" for name, value in self.summary().items())
        return f"{self.text}\n-- Generation({figures})"

    def _repr_html_(self) -> str:
        """The text in a box with the figures below, for notebooks; with a trace, coloured by how tokens were made."""
        figures = " &middot; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in self.summary().items())
        if self.trace is None:
            text, meaning = f"<span>{escape(self.text)}</span>", ""  # <pre> would swallow a line break at its start
        else:
            end = len(self.text) if self.finish_reason == "stop" else None
            text, meaning = coloured(self.trace, self.trace.texts[0].number, end), legend()
        return f"<pre style='{BOX}'>{text}</pre>{meaning}<small>{figures}</small>"
