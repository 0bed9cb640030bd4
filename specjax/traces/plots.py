"""Pictures of when drafts were accepted, and of how long rounds took."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specjax.errors import SpecjaxError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specjax.traces.trace import Trace

LENGTHS = 8
"""Into how many parts the positions of the rounds are divided."""

KINDS = ("word", "part of a word", "number", "punctuation", "white space", "other")
"""What a token can be."""


def plot(trace: Trace) -> Figure:
    """The figure that `Trace.plot` describes."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise SpecjaxError("plots need matplotlib, which is not installed: pip install 'specjax[analysis]'") from error
    figure, axes = pyplot.subplots(2, 3, figsize=(13, 6.5), layout="constrained")
    parts = (acceptance_by_place, survival, acceptance_by_confidence, acceptance_by_position, acceptance_by_kind, time)
    for part, own in zip(parts, axes.flat, strict=True):
        part(trace, own)
        own.grid(alpha=0.3)
    pyplot.close(figure)  # a notebook shows what the cell returns, and not this one besides
    return figure


def kind_of(string: str) -> str:
    """Which of `KINDS` a token's text is."""
    bare = string.strip()
    if not bare:
        return "white space"
    if bare.isdigit():
        return "number"
    if bare.isidentifier():
        return "word" if string[0].isspace() else "part of a word"
    if not any(char.isalnum() for char in bare):
        return "punctuation"
    return "other"


def _reached(trace: Trace) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rounds and places of the drafts whose predecessors were accepted, and whether they were accepted themselves."""
    round_, place = np.nonzero(trace.reached)
    return round_, place, place < trace.n_accepted[round_]


def _shares(accepted: np.ndarray, group: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The share of accepted drafts of each group, and its standard error; NaN for groups without any."""
    total = np.bincount(group, minlength=count).astype(float)
    total[total == 0] = np.nan
    share = np.bincount(group, accepted, minlength=count) / total
    return share, np.sqrt(share * (1 - share) / total)


def _of_share(axes: Axes, title: str, label: str) -> None:
    axes.set(title=title, xlabel=label, ylabel="accepted, if reached", ylim=(0, 1.02))


def acceptance_by_place(trace: Trace, axes: Axes) -> None:
    """How often a draft is accepted that is reached, by its place in the round."""
    _, place, accepted = _reached(trace)
    share, error = _shares(accepted, place, trace.drafts.shape[1])
    axes.bar(np.arange(1, len(share) + 1), share, yerr=error, color="tab:green", alpha=0.7)
    _of_share(axes, "by place in the round", "place of the draft")


def survival(trace: Trace, axes: Axes) -> None:
    """In which share of the rounds at least so many drafts are accepted."""
    drafting = trace.n_accepted[trace.n_drafted > 0]
    counts = np.arange(trace.drafts.shape[1] + 1)
    share = [(drafting >= count).mean() if len(drafting) else np.nan for count in counts]
    axes.step(counts, share, where="mid", marker="o", color="tab:green")
    axes.set(title="survival", xlabel="drafts", ylabel="rounds that accept as many", ylim=(0, 1.02))


def acceptance_by_confidence(trace: Trace, axes: Axes) -> None:
    """How often a draft is accepted, by how sure the drafter was: on the diagonal it knows what it knows."""
    round_, place, accepted = _reached(trace)
    confidence = trace.confidence[round_, place]
    known = np.isfinite(confidence)
    group = np.minimum((confidence[known] * 10).astype(int), 9)
    share, error = _shares(accepted[known], group, 10)
    axes.plot([0, 1], [0, 1], color="gray", linewidth=0.8)
    axes.errorbar(np.arange(10) / 10 + 0.05, share, yerr=error, marker="o", color="tab:blue")
    _of_share(axes, "by confidence", "confidence of the drafter")


def acceptance_by_position(trace: Trace, axes: Axes) -> None:
    """How often a draft is accepted, by how long the text is before it."""
    round_, _, accepted = _reached(trace)
    position = trace.position[round_]
    if not len(position):
        return _of_share(axes, "by length of the context", "tokens")
    edges = np.linspace(position.min(), position.max() + 1, LENGTHS + 1)
    share, error = _shares(accepted, np.searchsorted(edges, position, side="right") - 1, LENGTHS)
    axes.errorbar((edges[:-1] + edges[1:]) / 2, share, yerr=error, marker="o", color="tab:purple")
    return _of_share(axes, "by length of the context", "tokens")


def acceptance_by_kind(trace: Trace, axes: Axes) -> None:
    """How often a draft is accepted, by what the text has in its place."""
    round_, place, accepted = _reached(trace)
    inside = place < trace.n_emitted[round_]
    tokens = trace.tokens[round_[inside], place[inside]].tolist()
    group = np.array([KINDS.index(kind_of(trace.strings.get(token, ""))) for token in tokens], int)
    share, error = _shares(accepted[inside], group, len(KINDS))
    counts = np.bincount(group, minlength=len(KINDS))
    axes.barh([f"{kind} ({count})" for kind, count in zip(KINDS, counts, strict=True)], share, xerr=error, alpha=0.7)
    axes.set(title="by kind of token", xlabel="accepted, if reached", xlim=(0, 1.02))


def time(trace: Trace, axes: Axes) -> None:
    """Mean time of rounds along the text, for each depth."""
    for depth in np.unique(trace.depth):
        own = trace.depth == depth
        axes.plot(trace.position[own], 1e3 * trace.seconds[own], ".", alpha=0.5, label=f"{depth} drafts")
    axes.set(title="time of a round", xlabel="tokens", ylabel="milliseconds")
    axes.set_ylim(bottom=0)
    if len(trace):
        axes.legend()
