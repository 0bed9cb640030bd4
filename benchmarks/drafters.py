"""Tokens per round of n-grams, of the model's own head, and of both together, on the bundled model.

Each drafter continues the same held-out prompts, greedily. `prompts` are those of prompts.jsonl. `repeated` are the
same, each with its first lines once more behind it, as in a text that is edited or quoted. What is printed does not
depend on the machine's speed: emitted tokens over rounds, and which share of the accepted drafts were n-grams.

    python benchmarks/drafters.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax

PROMPTS = Path(__file__).parent / "prompts.jsonl"
DRAFTERS = (["ngram"], ["mtp"], ["ngram", "mtp"])


def repeated(prompt: str) -> str:
    """The prompt, and its first third once more."""
    lines = prompt.split("\n")
    return "\n".join([*lines, "", *lines[: max(2, len(lines) // 3)], ""])


def cell(model: specjax.Model, prompts: list[str], options: specjax.GenerateOptions) -> str:
    """Tokens per round of all prompts together, and the share of n-grams where there are several drafters.

    A dash if there were no rounds: the first token of each text comes from none.
    """
    stats = [each.stats for each in model.generate_batch(prompts, options)]
    rounds = sum(each.rounds for each in stats)
    if not rounds:
        return "-"
    mean = sum(each.tokens for each in stats) / rounds
    accepted = sum(each.accepted for each in stats)
    first = sum(sum(each.accepted_by_drafter[:1]) for each in stats)
    return f"{mean:.2f}" if first == accepted else f"{mean:.2f} ({first / accepted:.0%} n-grams)"


def main() -> None:
    """Print a table with a row for each kind of text and number of drafts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draft", type=int, nargs="+", default=[3, 8], help="numbers of drafts")
    parser.add_argument("--max-tokens", type=int, default=96, help="tokens after each prompt")
    parser.add_argument("--prompts", type=int, default=14, help="how many of the prompts")
    args = parser.parse_args()

    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][: args.prompts]
    texts = {"prompts": prompts, "repeated": [repeated(prompt) for prompt in prompts]}
    models, console = [specjax.load(drafter=drafters) for drafters in DRAFTERS], Console()
    table = Table("texts", "K", *(" + ".join(drafters) for drafters in DRAFTERS), box=None)
    cases = [(name, draft) for name in texts for draft in args.draft]
    for name, draft in track(cases, console=Console(stderr=True)):
        options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=draft, ignore_eos=True)
        table.add_row(name, str(draft), *(cell(model, texts[name], options) for model in models))
    console.print(f"{models[-1]!r}\n{description()}", markup=False)
    console.print(table)


if __name__ == "__main__":
    main()
