"""Speculative against plain decoding on the bundled model, in one run, with the bound that the parts allow.

Every K decodes the same held-out prompts greedily, the Ks in turn, several times over; ratios are taken within a turn
and their median is printed, because the speed of a shared machine drifts. Columns:

    tok/s      emitted tokens over the seconds of all rounds, at batch 1
    tau        mean tokens per round
    speed-up   tok/s over those of plain decoding in the same turn
    bound      tau * t_verify(1) / (t_verify(K + 1) + t_draft), from the halves timed alone
    verify     t_verify(K + 1) / t_verify(1)
    draft      t_draft / t_verify(1)
    compile    seconds to build the programs

Tokens that differ from those of plain decoding are listed; the status is 1 unless each difference is a near-tie.

    python benchmarks/decode.py
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.analysis.divergence import find_divergence
from specjax.analysis.profiling import round_cost, speedup_bound

PROMPTS = Path(__file__).parent / "prompts.jsonl"


def measure(model: specjax.Model, prompts: list[str], options: specjax.GenerateOptions) -> tuple[float, float]:
    """Tokens and seconds of all rounds of all prompts, one prompt after the other."""
    results = [model.generate(prompt, options) for prompt in prompts]
    return sum(r.stats.tokens for r in results), sum(r.timings.decode for r in results)


def acceptance(results: list[specjax.Generation]) -> list[float]:
    """Per draft position, the share of rounds that drafted this far and accepted this far."""
    drafted = [sum(counts) for counts in zip(*(r.stats.drafted_by_position for r in results), strict=True)]
    accepted = [sum(counts) for counts in zip(*(r.stats.accepted_by_position for r in results), strict=True)]
    return [a / d for a, d in zip(accepted, drafted, strict=True)]


def divergences(
    model: specjax.Model,
    options: specjax.GenerateOptions,
    results: list[specjax.Generation],
    plain: list[specjax.Generation],
) -> list[dict[str, Any]]:
    """Where prompts went on otherwise than in plain decoding, as plain values."""
    found = []
    for index, (result, reference) in enumerate(zip(results, plain, strict=True)):
        difference = find_divergence(model, reference.prompt_tokens, options, result.tokens, reference.tokens)
        if difference is not None:
            near_tie, text = difference.near_tie, str(difference)
            found.append({"prompt": index, "position": difference.position, "near_tie": near_tie, "text": text})
    return found


def main() -> int:
    """Run, print the table, and write JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file or safetensors folder (default: the bundled model)")
    parser.add_argument("--packed", choices=("a16", "a8", "off"), default="a16", help="as of `specjax generate`")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, help="JSONL with a `prompt` per line")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--drafts", type=int, nargs="+", default=[0, 1, 2, 3, 4, 5], help="values of K; 0 is plain")
    parser.add_argument("--turns", type=int, default=5, help="times that all Ks run")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    console = Console(stderr=True)

    model = specjax.load(args.model)
    prompts = [json.loads(line)["prompt"] for line in args.prompts.read_text().splitlines() if line]
    drafts = sorted({0, *args.drafts})
    options = {k: specjax.GenerateOptions(max_tokens=args.max_tokens, draft=k, ignore_eos=True) for k in drafts}

    rows: dict[int, dict[str, Any]] = {}
    longest = max(prompts, key=lambda prompt: len(model.encode(prompt)))
    for k in track(drafts, "compile, and time the halves", console=console):
        stream = model.stream(longest, options[k])
        for _ in stream.updates():
            pass
        results = [model.generate(prompt, options[k]) for prompt in prompts]
        rows[k] = {
            "compile": stream.result.timings.compile,
            "cost": round_cost(stream.engine.decoder, model.params, stream.engine.state),
            "tau": sum(r.stats.tokens for r in results) / sum(r.stats.rounds for r in results),
            "accepted": acceptance(results),
            "results": results,
            "rates": [],
            "ratios": [],
        }
    for k, row in rows.items():
        row["divergences"] = divergences(model, options[k], row["results"], rows[0]["results"])
        for difference in row["divergences"]:
            console.print(f"K = {k}, prompt {difference['prompt']}: {difference['text']}")

    for _ in track(range(args.turns), "decode", console=console):
        for k, row in rows.items():
            tokens, seconds = measure(model, prompts, options[k])
            row["rates"].append(tokens / seconds)
            row["ratios"].append(row["rates"][-1] / rows[0]["rates"][-1])

    plain = rows[0]["cost"]
    table = Table(title=f"{model.path.name}, greedy, {len(prompts)} held-out prompts x {args.max_tokens} tokens")
    for column in ("K", "tok/s", "tau", "speed-up", "bound", "verify", "draft", "compile"):
        table.add_column(column, justify="right")
    figures = []
    for k, row in rows.items():
        figure = {
            "K": k,
            "tokens_per_second": statistics.median(row["rates"]),
            "tau": row["tau"],
            "speedup": statistics.median(row["ratios"]),
            "bound": speedup_bound(row["tau"], plain, row["cost"]),
            "verify": row["cost"].verify / plain.verify,
            "draft": row["cost"].draft / plain.verify,
            "compile": row["compile"],
            "accepted_by_position": row["accepted"],
            "divergences": row["divergences"],
        }
        figures.append(figure)
        formats = ("{}", "{:.0f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.2f}", "{:.1f} s")
        table.add_row(*(form.format(value) for form, value in zip(formats, figure.values(), strict=False)))
    Console().print(table)
    for k in drafts[1:]:
        print(f"K = {k}: accepted by position " + " ".join(f"{share:.3f}" for share in rows[k]["accepted"]))
    print(f"{description()}; t_verify(1) = {plain.verify * 1e3:.2f} ms; {args.turns} turns, medians")
    if args.out:
        args.out.write_text(json.dumps({"machine": description(), "figures": figures}, indent=1) + "\n")
    return 0 if all(difference["near_tie"] for row in rows.values() for difference in row["divergences"]) else 1


if __name__ == "__main__":
    sys.exit(main())
