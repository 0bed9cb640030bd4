"""Loss curves of a run."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from checkpoints.atomic import replaced
from specjax.training.run_folder import RunFolder


def plot_losses(folder: RunFolder) -> None:
    """Write `loss.png`: training (smoothed) and held-out loss of the trunk and of each draft step, by step."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    lines = folder.read_metrics()
    names = {"loss": "trunk"} | {f"mtp_loss_{j}": f"MTP step {j}" for j in range(1, 10)}
    for color, (name, label) in enumerate(names.items()):
        steps, values = series(lines, "step", name)
        if len(steps):
            axes.plot(steps, smoothed(values), color=f"C{color}", alpha=0.5, linewidth=1, label=f"{label}, training")
        steps, values = series(lines, "held_out", name)
        if len(steps):
            axes.plot(steps, values, "o-", color=f"C{color}", markersize=3, label=f"{label}, held out")
    _finish(axes, "cross entropy (nats per token)")
    _save(figure, folder)


def plot_drafter(folder: RunFolder) -> None:
    """Write `loss.png` of a drafter: its loss, and how often each of its drafts is the target's choice, by step."""
    figure = Figure(figsize=(8, 7), layout="constrained")
    above, below = figure.subplots(2, sharex=True)
    lines = folder.read_metrics()
    steps, values = series(lines, "step", "loss")
    above.plot(steps, smoothed(values), alpha=0.5, linewidth=1, label="training")
    above.plot(*series(lines, "held_out", "loss"), "o-", markersize=3, label="held out")
    _finish(above, "loss")
    for draft in range(1, 17):
        steps, values = series(lines, "held_out", f"agreement_{draft}")
        if len(steps):
            below.plot(steps, values, "o-", markersize=3, label=f"draft {draft}")
    _finish(below, "agreement with the target")
    _save(figure, folder)


def _finish(axes: Axes, label: str) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.legend()


def _save(figure: Figure, folder: RunFolder) -> None:
    with replaced(folder.loss_plot) as temporary, temporary.open("wb") as file:
        FigureCanvasAgg(figure).print_png(file)


def series(lines: list[dict], event: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of one logged quantity."""
    points = [(line["step"], line[name]) for line in lines if line["event"] == event and name in line]
    steps, values = np.array(points, dtype=float).reshape(-1, 2).T
    return steps, values


def smoothed(values: np.ndarray, window: int = 20) -> np.ndarray:
    """Running mean over the last `window` values."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)
