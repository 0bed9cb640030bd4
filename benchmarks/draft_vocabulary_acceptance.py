"""Tokens per round of the bundled model, by the tokens that its drafter can draft. Machines do not matter to them.

The lists are counted in the modules at the top of Python's standard library, or are those with the lowest ids. Every
list must leave the text as it is: a difference is an error.

    python benchmarks/draft_vocabulary_acceptance.py
"""

from __future__ import annotations

import argparse
import json
import platform
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.analysis.token_counts import TokenCounts
from specjax.runtime.draft_vocabulary import TokenList, fingerprint, most_frequent

PROMPTS = Path(__file__).parent / "prompts.jsonl"


def continued(prompts: Sequence[str], options: specjax.GenerateOptions, **loading: object) -> list[specjax.Generation]:
    """What the bundled model says to each prompt."""
    return specjax.load(**loading).generate_batch(prompts, options)


def tokens_per_round(said: Sequence[specjax.Generation]) -> float:
    """Of all texts together."""
    return sum(each.stats.tokens for each in said) / sum(each.stats.rounds for each in said)


def main() -> None:
    """Print a table with a row for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 1024, 512, 256], help="of draft vocabularies")
    parser.add_argument("--draft", type=int, default=3, help="K")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens after each prompt")
    parser.add_argument("--prompts", type=int, default=14, help="how many of the prompts")
    args = parser.parse_args()

    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()][: args.prompts]
    options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=args.draft, ignore_eos=True)
    model = specjax.load()
    size, tokenizer = model.target.vocab_size, model.tokenizer
    assert tokenizer is not None
    counted, written = TokenCounts(size), TokenCounts(size)
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    counted.read(tokenizer, modules)
    every = model.generate_batch(prompts, options)
    for each in every:
        written.add(each.tokens)

    table = Table("tokens", "counted", "lowest ids", "share of the output, counted", box=None)
    table.add_row(f"{size} (all)", *[f"{tokens_per_round(every):.2f}"] * 2, "100 %")
    for number in track(args.sizes, console=Console(stderr=True)):
        tokens = most_frequent(counted.counts, tokenizer, number)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "tokens.json"
            TokenList(size, fingerprint(tokenizer), "counted in Python's standard library", tokens).write(path)
            runs = [continued(prompts, options, draft_vocab=source) for source in (str(path), number)]
        for said in runs:
            assert [each.tokens for each in said] == [each.tokens for each in every], "a list has changed the text"
        speeds = [f"{tokens_per_round(said):.2f}" for said in runs]
        table.add_row(str(number), *speeds, f"{written.share_of(tokens):.0%}")
    console = Console()
    console.print(f"{len(modules)} modules of Python {platform.python_version()}, K = {args.draft}, tokens per round")
    console.print(table)


if __name__ == "__main__":
    main()
