"""What a trace predicts for other settings of drafting, against runs with these settings.

The first table has greedy texts, which are the same in every run. The second has sampled texts: a trace of the coupled
rule predicts what the other rules would bring. Their runs have texts of their own, so they differ by more than what
replay gets wrong; the standard errors say by how much.

    python benchmarks/replay.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.runtime.compilation_cache import use_compilation_cache
from specjax.traces.replay import WhatIf

PROMPTS = Path(__file__).with_name("prompts.jsonl")


def main() -> None:
    """Record traces, predict, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file or safetensors folder (default: the bundled model)")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSON lines with a `prompt` each")
    parser.add_argument("--count", type=int, default=24, help="how many of them")
    parser.add_argument("--tokens", type=int, default=160, help="of each text")
    parser.add_argument("--depths", type=int, nargs="+", default=[8, 5], help="drafts of the traces")
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3, 5], help="drafts that are predicted")
    parser.add_argument("--p-min", type=float, nargs="+", default=[0.3, 0.6, 0.8], help="thresholds, with most drafts")
    parser.add_argument("--temperature", type=float, default=0.8, help="of the sampled texts")
    args = parser.parse_args()
    use_compilation_cache()
    model = specjax.load(args.model)
    lines = args.prompts.read_text().splitlines()[: args.count]
    prompts = [json.loads(line)["prompt"] for line in lines]
    most = max(args.drafts)
    settings = [*((k, 0.0) for k in args.drafts), *((most, p_min) for p_min in args.p_min)]

    def run(k: int, p_min: float = 0.0, **sampling: Any) -> specjax.Trace:
        draft = specjax.DraftConfig(n_max=k, p_min=p_min)
        options = specjax.GenerateOptions(draft=draft, max_tokens=args.tokens, ignore_eos=True, trace=True, **sampling)
        return specjax.Trace.join([each.trace for each in model.generate_batch(prompts, options) if each.trace])

    traces = {depth: run(depth) for depth in track(args.depths, "record", console=Console(stderr=True))}
    table = Table(title=f"{model.path.name}: tokens of a round, greedy")
    for column in ("K", "p_min", "measured", *(f"from K = {depth}" for depth in args.depths)):
        table.add_column(column, justify="right")
    for k, p_min in track(settings, "compare", console=Console(stderr=True)):
        measured = float(run(k, p_min).n_emitted.mean())
        cells = [told(trace.what_if(k, p_min), measured) if k <= depth else "" for depth, trace in traces.items()]
        table.add_row(str(k), f"{p_min:g}", f"{measured:.3f}", *cells)
    Console(width=120).print(table)

    sampling = {"temperature": args.temperature, "seed": 1}
    traces = {depth: run(depth, **sampling, accept="coupled") for depth in args.depths}
    table = Table(title=f"{model.path.name}: tokens of a round, temperature {args.temperature:g}")
    for column in ("K", "rule", "measured", *(f"coupled, from K = {depth}" for depth in args.depths)):
        table.add_column(column, justify="right")
    rules = [(k, rule) for k in args.drafts for rule in ("rejection", "block")]
    for k, rule in track(rules, "compare rules", console=Console(stderr=True)):
        own = run(k, **sampling, accept=rule)
        measured, error = float(own.n_emitted.mean()), own.what_if(k).tokens_per_round_error
        cells = [told(trace.what_if(k, accept=rule), measured) if k <= depth else "" for depth, trace in traces.items()]
        table.add_row(str(k), rule, f"{measured:.3f} ± {error:.3f}", *cells)
    Console(width=120).print(table)


def told(found: WhatIf, measured: float) -> str:
    """A prediction, and by how much it is off."""
    off = 100 * (found.tokens_per_round / measured - 1)
    return f"{found.tokens_per_round:.3f} ± {found.tokens_per_round_error:.3f} ({off:+.1f} %)"


if __name__ == "__main__":
    main()
