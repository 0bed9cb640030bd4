"""Figures over all results of an evaluation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from specjax.decoding.stats import DecodeStats


@dataclass
class Summary:
    """Sums over result lines.

    Attributes:
        ids: of the prompts that were continued.
        texts, tokens: how many texts came of them, one for each sample, and how many tokens these have.
        finish_reasons: how often each.
        bad: lines that could not be continued.
        stats: how many tokens were drafted and accepted.
    """

    texts: int = 0
    tokens: int = 0
    finish_reasons: Counter[str] = field(default_factory=Counter)
    stats: DecodeStats = field(default_factory=DecodeStats)
    bad: int = 0
    ids: set[str | int] = field(default_factory=set)

    @property
    def prompts(self) -> int:
        """How many prompts were continued, each counted once."""
        return len(self.ids)

    def as_document(self) -> dict[str, Any]:
        """The figures as a dict, ready to be written as JSON."""
        return {
            "prompts": self.prompts,
            "texts": self.texts,
            "tokens": self.tokens,
            "finish_reasons": dict(self.finish_reasons),
            "bad": self.bad,
            "rounds": self.stats.rounds,
            "drafted": self.stats.drafted,
            "accepted": self.stats.accepted,
            "drafted_by_position": self.stats.drafted_by_position,
            "accepted_by_position": self.stats.accepted_by_position,
            "tokens_per_round": self.stats.tokens_per_round,
        }


def summarize(results: Iterable[Mapping[str, Any]]) -> Summary:
    """Add up the lines of a result file."""
    summary = Summary()
    stats = summary.stats
    for result in results:
        if "error" in result:
            summary.bad += 1
            continue
        summary.ids.add(result["id"])
        summary.texts += 1
        summary.tokens += len(result["tokens"])
        summary.finish_reasons[result["finish_reason"]] += 1
        stats.rounds += result["rounds"]
        stats.tokens += len(result["tokens"]) - 1  # the first one comes from prefill
        stats.drafted += result["drafted"]
        stats.accepted += result["accepted"]
        stats.drafted_by_position = _sum(stats.drafted_by_position, result["drafted_by_position"])
        stats.accepted_by_position = _sum(stats.accepted_by_position, result["accepted_by_position"])
    return summary


def _sum(a: list[int], b: list[int]) -> list[int]:
    return [x + y for x, y in zip_longest(a, b, fillvalue=0)]
