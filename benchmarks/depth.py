"""The number of drafts that finds itself against fixed numbers, while acceptance changes with time.

Whether a draft is accepted is drawn by lot (see `specjax bench --synthetic-acceptance`), with a probability that is
another one in each phase. All numbers of drafts and "auto" go through the same phases, each on an engine of its own
that goes on where it stood. In a phase they take turns in short slices, because the speed of machines drifts, and in an
order drawn anew each time, because a machine is slower for a while after hard work. Requests follow each other in the
seats. Their lengths differ, so that seats become free one by one with any number of drafts. The time of prompts is left
out, and so is the time of compiling. Columns are tokens of a phase over those of plain decoding in the same phase and
turn, medians of the turns; the last one is that of all phases together, each number emitting as many tokens in every
phase. "0 again" is plain decoding on another engine: what it is off from 1 is the scatter of this measurement.

    python benchmarks/depth.py --batch 1 4 16
    python benchmarks/depth.py --batch 1 --processes 5

Such figures differ from process to process, by one or two percent where a round takes less than a millisecond. With
--processes everything runs in as many processes, and means count. Run it twice: programs that XLA has compiled in a
process are slower there than those that it loads from the cache on disk, which a second run does. The last line is
"auto" over the best number of each phase, of which plain decoding is one: the mean of both engines.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.analysis.benchmark import random_prompt
from specjax.decoding.acceptance import Synthetic
from specjax.decoding.decoder import MAX_DRAFTS
from specjax.decoding.stats import DecodeStats
from specjax.runtime.compilation_cache import use_compilation_cache
from specjax.runtime.loading import bundled_model
from specjax.runtime.slots import slots_for

PROMPT_TOKENS, MAX_TOKENS = 32, 448
LEAST_TOKENS = MAX_TOKENS // 2
SLICE = 1.0
"""Seconds that a number runs before the next one has its turn."""


@dataclass
class Contender:
    """An engine that decodes with one number of drafts, or with the one that finds itself."""

    model: specjax.Model
    draft: int | str
    batch: int
    requests: int = 0
    running: int = 0
    name: str = ""
    speeds: dict[float, list[float]] = field(default_factory=dict)
    stats: dict[float, DecodeStats] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.name = self.name or str(self.draft)
        self.options = specjax.GenerateOptions(draft=self.draft, max_tokens=MAX_TOKENS, ignore_eos=True)
        slots = slots_for(PROMPT_TOKENS + MAX_TOKENS)
        self.engine = self.model.engine([self.options], seats=self.batch, slots=slots)
        self.engine.experience.effort.rounds = math.inf  # building counts for nothing here

    def run(self, acceptance: float, seconds: float) -> float:
        """Decode for so long, building and prompts left out, until nothing is under way; returns tokens a second."""
        self.engine.decoder = replace(self.engine.decoder, rule=Synthetic((acceptance,) * MAX_DRAFTS))
        stats = self.stats.setdefault(acceptance, DecodeStats())
        before, left = stats.tokens, seconds
        while left > 0:
            self._fill_seats(stats)
            begin = self._clock()
            while self._clock() - begin < left and self.running == self.batch:
                self._step(stats)
            self._step(stats, rounds=0)
            left -= self._clock() - begin
        return (stats.tokens - before) / (seconds - left)

    def _clock(self) -> float:
        """Seconds that were not spent on building."""
        return time.perf_counter() - self.engine.compile_seconds

    def _fill_seats(self, stats: DecodeStats) -> None:
        """Let requests take the free seats, and decode none of them yet."""
        new = []
        while self.running < self.batch:
            self.running += 1
            prompt = random_prompt(self.model.target.vocab_size, PROMPT_TOKENS, self.requests)
            limit = random.Random(self.requests).randint(LEAST_TOKENS, MAX_TOKENS)
            options = replace(self.options, max_tokens=limit)
            new.append(self.engine.submit(self.model.request(prompt, options, sequence=self.requests)))
            self.requests += 1
        while not all(job.fed for job in new):
            self._step(stats, rounds=0)

    def _step(self, stats: DecodeStats, rounds: int | None = None) -> None:
        for update in self.engine.step(rounds):
            if update.record is not None:
                stats.add(update.record, update.row)
            self.running -= update.job.finish_reason is not None


def measure(
    model: specjax.Model, batch: int, drafts: list[int], phases: list[float], seconds: float, turns: int
) -> Iterator[Contender]:
    """Let plain decoding, the fixed numbers and "auto" go through the phases."""
    contenders = [Contender(model, draft, batch) for draft in (0, *drafts, "auto")]
    contenders.insert(1, Contender(model, 0, batch, name="0 again"))
    console, order = Console(stderr=True), random.Random(0)
    for contender in track(contenders, f"batch {batch}: compile", console=console):
        for acceptance in phases * (2 if contender.draft == "auto" else 1):
            contender.run(acceptance, seconds if contender.draft == "auto" else min(seconds, 3.0))
        contender.stats.clear()
    for _ in track(range(turns), f"batch {batch}: decode", console=console):
        for acceptance in phases:
            slices: dict[str, list[float]] = {contender.name: [] for contender in contenders}
            for _ in range(round(seconds / SLICE)):
                for contender in order.sample(contenders, len(contenders)):
                    slices[contender.name].append(contender.run(acceptance, SLICE))
            for contender in contenders:
                contender.speeds.setdefault(acceptance, []).append(statistics.mean(slices[contender.name]))
    return iter(contenders)


def ratios(contender: Contender, plain: Contender) -> list[float]:
    """Speed over that of plain decoding, phase by phase, and of all phases together."""
    phases = [
        statistics.median(own / base for own, base in zip(speeds, plain.speeds[phase], strict=True))
        for phase, speeds in contender.speeds.items()
    ]
    return [*phases, len(phases) / sum(1 / ratio for ratio in phases)]


def figures_here(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What each number of drafts brings in this process, and "auto"."""
    use_compilation_cache()
    model = specjax.load(args.model, need_tokenizer=False)
    for batch in args.batch:
        contenders = list(measure(model, batch, args.drafts, args.phases, args.seconds, args.turns))
        for contender in contenders:
            shares = [[round(n / each.rounds, 2) for n in each.rounds_by_drafts] for each in contender.stats.values()]
            row = ratios(contender, contenders[0])
            yield {"batch": batch, "draft": contender.name, "ratios": row, "rounds_by_drafts": shares}


def figures_of_processes(count: int) -> Iterator[dict[str, Any]]:
    """Run this program so many times, one after the other; yield the figures of all."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "figures.json"
        for number in range(count):
            print(f"process {number + 1} of {count}", file=sys.stderr)
            subprocess.run([sys.executable, *sys.argv, "--processes", "1", "--out", out], check=True)
            yield from json.loads(out.read_text())["figures"]


def print_table(title: str, phases: list[float], figures: list[dict[str, Any]]) -> None:
    """Print means and, of several processes, how far they differ; and "auto" over the best number of each phase."""
    table = Table(title=title)
    for column in ("K", *(f"accept {phase:g}" for phase in phases), "all", "rounds by drafts in each phase"):
        table.add_column(column)
    means: dict[str, list[float]] = {}
    for name in dict.fromkeys(figure["draft"] for figure in figures):
        own = [figure for figure in figures if figure["draft"] == name]
        columns = list(zip(*(figure["ratios"] for figure in own), strict=True))
        means[name] = [statistics.mean(column) for column in columns]
        spread = [f" ({min(column):.3f} to {max(column):.3f})" if len(own) > 1 else "" for column in columns]
        chosen = " ".join(map(str, own[-1]["rounds_by_drafts"])) if name == "auto" else ""
        table.add_row(name, *(f"{mean:.3f}{more}" for mean, more in zip(means[name], spread, strict=True)), chosen)
    auto = means.pop("auto")
    plain = [statistics.mean(pair) for pair in zip(means.pop("0"), means.pop("0 again"), strict=True)]
    best = [max(column) for column in zip(plain, *means.values(), strict=True)]
    table.add_section()
    table.add_row("auto / best", *(f"{own / other:.3f}" for own, other in zip(auto, best, strict=True)))
    Console(width=200).print(table)


def main() -> None:
    """Run, print a table for each batch, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file or safetensors folder (default: the bundled model)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3, 5, 8], help="fixed numbers, besides 0")
    parser.add_argument("--phases", type=float, nargs="+", default=[0.9, 0.5, 0.1], help="acceptance of each phase")
    parser.add_argument("--seconds", type=float, default=5.0, help="that a phase lasts")
    parser.add_argument("--turns", type=int, default=3, help="times that all phases run")
    parser.add_argument("--processes", type=int, default=1, help="one after the other; means of all are printed")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    figures = list(figures_of_processes(args.processes) if args.processes > 1 else figures_here(args))
    for batch in args.batch:
        name = Path(args.model or bundled_model()).name
        title = f"{name}, batch {batch}, {args.seconds:g} s a phase; {description()}"
        print_table(title, args.phases, [figure for figure in figures if figure["batch"] == batch])
    if args.out:
        args.out.write_text(json.dumps({"machine": description(), "phases": args.phases, "figures": figures}))


if __name__ == "__main__":
    main()
