"""Bar charts as SVG, which stand in a page of HTML without a file or a script beside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import numpy as np

WIDTH, HEIGHT = 440, 220
LEFT, RIGHT, TOP, BOTTOM = 48, 12, 34, 40
MOST_LABELS = 12
"""More labels below a chart would run into each other."""


def bars(title: str, labels: Sequence[str], values: Sequence[float], *, below: str, top: float | None = None) -> str:
    """A bar for each value.

    Args:
        title: stands above.
        labels: one for each bar, below it; if they are many, only some are shown.
        values: not negative.
        below: what the labels are.
        top: the value at the upper end of the axis; None: a round number above the largest value.
    """
    top = _round_up(max(values, default=0)) if top is None else top
    plot_width, plot_height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    step = plot_width / max(len(values), 1)
    every = math.ceil(len(labels) / MOST_LABELS)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img"'
        f' aria-label="{escape(title)}" font-family="sans-serif" font-size="11">',
        f'<text x="{LEFT}" y="18" font-size="13" font-weight="bold">{escape(title)}</text>',
    ]
    for share in (0, 0.5, 1):
        y = TOP + plot_height * (1 - share)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ccc"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(top * share)}</text>')
    for index, (label, value) in enumerate(zip(labels, values, strict=True)):
        height = plot_height * min(value / top, 1)
        x, y = LEFT + step * index, TOP + plot_height - height
        parts.append(
            f'<rect x="{x + step * 0.1:.1f}" y="{y:.1f}" width="{step * 0.8:.1f}" height="{height:.1f}" fill="#4878a8">'
            f"<title>{escape(label)}: {_number(value)}</title></rect>"
        )
        if index % every == 0:
            middle, under = x + step / 2, TOP + plot_height + 14
            parts.append(f'<text x="{middle:.1f}" y="{under}" text-anchor="middle">{escape(label)}</text>')
    parts.append(
        f'<text x="{LEFT + plot_width / 2}" y="{HEIGHT - 8}" text-anchor="middle">{escape(below)}</text></svg>'
    )
    return "\n".join(parts)


def histogram(title: str, values: Sequence[float], *, below: str, bins: int = 20) -> tuple[str, dict[str, list[float]]]:
    """How many of the values lie where: a chart, and the same as numbers ("edges", one more than there are "counts").

    Whole numbers get bins between which none is divided.
    """
    low, high = min(values), max(values)
    if all(float(value).is_integer() for value in values):
        size = math.ceil((high - low + 1) / bins)
        edges = np.arange(low, high + size + 1, size, dtype=float)
    else:
        edges = np.linspace(low, high, bins + 1) if high > low else np.array([low, low + 1])
    counts = np.histogram(values, edges)[0].tolist()
    chart = bars(title, [_number(edge) for edge in edges[:-1]], counts, below=below)
    return chart, {"edges": edges.tolist(), "counts": counts}


def _round_up(value: float) -> float:
    """The next of 1, 2, 5, 10, 20, ..."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
