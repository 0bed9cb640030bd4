"""Tokens per round under each acceptance rule, on the bundled model.

Every rule continues the same held-out prompts with the same settings, once for each seed. What is printed does not
depend on the machine's speed: emitted tokens over rounds, and the standard error of that over the seeds.

    python benchmarks/acceptance_rules.py
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.decoding.acceptance import RULES

PROMPTS = Path(__file__).parent / "prompts.jsonl"


def tokens_per_round(model: specjax.Model, prompts: list[str], options: specjax.GenerateOptions) -> float:
    """Of all prompts together. The first token of each is no round."""
    stats = [each.stats for each in model.generate_batch(prompts, options)]
    return sum(each.tokens for each in stats) / sum(each.rounds for each in stats)


def main() -> None:
    """Print a table with a row for each temperature and number of drafts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=int, nargs="+", default=[1, 3, 5], help="numbers of drafts")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.6, 1.0], help="temperatures")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens after each prompt")
    parser.add_argument("--prompts", type=int, default=14, help="how many of the prompts")
    parser.add_argument("--seeds", type=int, default=8, help="how often each prompt is continued")
    args = parser.parse_args()

    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][: args.prompts]
    model, console = specjax.load(), Console()
    table = Table("temperature", "K", *RULES, box=None)
    cases = [(temperature, draft) for temperature in args.temperature for draft in args.draft]
    for temperature, draft in track(cases, console=Console(stderr=True)):
        cells = []
        for rule in RULES:
            wants = specjax.GenerateOptions(
                max_tokens=args.max_tokens, temperature=temperature, draft=draft, accept=rule, ignore_eos=True
            )
            seeds = [tokens_per_round(model, prompts, replace(wants, seed=seed)) for seed in range(args.seeds)]
            error = np.std(seeds, ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else np.nan
            cells.append(f"{np.mean(seeds):.3f} ± {error:.3f}")
        table.add_row(f"{temperature:g}", str(draft), *cells)
    console.print(f"{model!r}\n{description()}", markup=False)
    console.print(table)


if __name__ == "__main__":
    main()
