"""A report of an evaluation: one page of HTML with plots, figures and texts, or the figures alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from specjax.evaluation.charts import bars, histogram
from specjax.evaluation.summary import Summary, summarize

MOST_TEXTS = 500
"""A page with more texts is slow to scroll; the result file has all of them."""

CONTROL = {code: 0x2400 + code for code in range(32) if chr(code) not in "\t\n"}
"""Control characters, which a page must not have, and the pictures of them."""

STYLE = """\
body { font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.charts { display: flex; flex-wrap: wrap; gap: 1rem; }
"""


def report(results: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
    """The page. Nothing is loaded from elsewhere; the element with the id `figures` has the figures as JSON.

    Args:
        results: lines of a result file.
        settings: of the run.
    """
    summary, texts = summarize(results), _texts_of(results)
    charts, _ = _plots(summary, texts)
    data = json.dumps(figures(results, settings)).replace("</", "<\\/")  # so that no text ends the element
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>specjax eval</title>',
            f"<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Evaluation</h1>",
            _table([], _overview(summary, texts)),
            '<div class="charts">',
            *charts,
            "</div>",
            *_errors(results),
            "<h2>Texts</h2>",
            _texts(texts),
            "<h2>Settings</h2>",
            _table([], [(name, json.dumps(value)) for name, value in settings.items()]),
            f'<script type="application/json" id="figures">{data}</script>\n</body>\n</html>\n',
        ]
    )


def figures(results: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows, as plain values: the counts of the summary, what the plots are drawn from, and the settings.

    The arguments are those of `report`.
    """
    summary = summarize(results)
    _, shown = _plots(summary, _texts_of(results))
    return {**shown, **summary.as_document(), "settings": dict(settings)}


def _texts_of(results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The results that have a text."""
    return [result for result in results if "error" not in result]


def _plots(summary: Summary, texts: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, Any]]:
    """The charts, and what they show as numbers."""
    charts: list[str] = []
    figures: dict[str, Any] = {}

    def add(name: str, title: str, values: Sequence[float], below: str) -> None:
        if values:
            chart, figures[name] = histogram(title, values, below=below)
            charts.append(chart)

    if shares := summary.stats.acceptance_by_position:
        figures["acceptance_by_position"] = shares
        labels = [str(position) for position in range(1, len(shares) + 1)]
        charts.append(bars("Share of drafts accepted", labels, shares, below="position in the draft", top=1.0))
    per_round = [(len(text["tokens"]) - 1) / text["rounds"] for text in texts if text["rounds"]]
    add("tokens_per_round_by_text", "Texts by tokens a round", per_round, "tokens a round")
    add("tokens_by_text", "Texts by length", [len(text["tokens"]) for text in texts], "tokens")
    add("prompt_tokens", "Texts by length of the prompt", [text["prompt_tokens"] for text in texts], "tokens")
    scored = [_mean(text["logprobs"]) for text in texts if text.get("logprobs")]
    add("mean_logprob_by_text", "Texts by mean log-probability", scored, "mean log-probability of a token")
    return charts, figures


def _overview(summary: Summary, texts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    stats = summary.stats
    reasons = ", ".join(f"{count} {reason}" for reason, count in summary.finish_reasons.most_common())
    rows = [
        ("prompts", str(summary.prompts) + (f", and {summary.bad} with an error" if summary.bad else "")),
        ("texts", f"{summary.texts} ({reasons})"),
        ("tokens", f"{summary.tokens} in {stats.rounds} rounds, {stats.tokens_per_round:.2f} per round"),
        ("drafts", f"{stats.accepted} of {stats.drafted} accepted ({stats.acceptance:.1%})"),
    ]
    logprobs = [value for text in texts for value in text.get("logprobs") or ()]
    if logprobs:
        rows.append(("mean log-probability", f"{_mean(logprobs):.4f} of a token"))
    return rows


def _errors(results: Sequence[Mapping[str, Any]]) -> list[str]:
    wrong = [(str(result["id"]), result["error"]) for result in results if "error" in result]
    return ["<h2>Errors</h2>", _table(["id", "error"], wrong)] if wrong else []


def _texts(texts: Sequence[Mapping[str, Any]]) -> str:
    ordered = sorted(texts, key=lambda text: (text["index"], text["sample"]))
    rows = []
    for text in ordered[:MOST_TEXTS]:
        accepted = f"{text['accepted']} of {text['drafted']}"
        logprob = f"{_mean(text['logprobs']):.3f}" if text.get("logprobs") else ""
        numbers = (str(text[name]) for name in ("id", "sample", "seed", "finish_reason"))
        rows.append((*numbers, str(len(text["tokens"])), accepted, logprob, text["text"]))
    heads = ["id", "sample", "seed", "end", "tokens", "drafts accepted", "mean log-probability", "text"]
    left = len(ordered) - len(rows)
    more = f"<p>{left} more texts are in the result file.</p>" if left else ""
    return _table(heads, rows) + more


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in heads)}</tr>\n" if heads else ""
    lines = ("".join(f"<td><pre>{escape(cell.translate(CONTROL))}</pre></td>" for cell in row) for row in rows)
    return f"<table>\n{head}" + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))
