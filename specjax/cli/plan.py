"""`specjax plan`: which number of drafts to use on this machine, for texts like these."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.generate import DEFAULT_PROMPT
from specjax.cli.options import (
    add_command,
    add_decoding_options,
    add_model_options,
    check_output,
    generate_options,
    load_model,
)
from specjax.cli.runtime import UsageError

if TYPE_CHECKING:
    from specjax.analysis.planning import Plan
    from specjax.runtime.model import Model

DESCRIPTION = """\
Say which number of drafts K to use, and which of several drafters: measure what rounds cost on this machine, and how
many drafts are accepted.

Costs are measured for each batch and context length, the halves of a round apart: K drafts, and the pass over K + 1
tokens. Acceptance is read from one run over the prompts with the most drafts, or from a trace of earlier texts; what
fewer drafts would have brought follows from it. So the answer is for texts like these, and for this machine.
"""

EPILOG = """\
columns:
  K           drafts in a round; 0 is plain decoding
  draft, verify
              milliseconds of the halves of a round, of the whole batch
  tau         tokens of a round and row, with the standard error
  tok/s       of all rows together; acceptance and the host's share come on top of the two halves
  speed-up    tok/s over those of plain decoding
  even at     the acceptance of every draft at which K drafts are as fast as plain decoding

examples:
  specjax plan                                       the bundled model and a prompt that suits it
  specjax plan model.gguf --prompts prompts.jsonl --batch 1 8 --context 512 8192 --draft 1 2 3 5
  specjax plan model.gguf --against ngram --prompts prompts.jsonl        the model's head, or n-grams?
  specjax plan model.gguf --trace trace.npz          acceptance of texts that were traced: generate --trace trace.npz
  specjax plan --plot plan.png --json
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "plan", "say how many tokens to draft on this machine", DESCRIPTION, EPILOG, run)
    add_model_options(parser, positional=True)
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--prompts", type=Path, metavar="F.jsonl", help="continue these, one JSON object a line as of specjax eval"
    )
    source.add_argument(
        "--trace", dest="trace_file", type=Path, metavar="FILE.npz", help="read acceptance from this trace"
    )
    parser.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE|DIR|ngram|mtp",
        help="compare with this drafter, which continues the prompts too; can be repeated",
    )
    parser.add_argument("--batch", type=int, nargs="+", metavar="B", help="texts at once (default: 1 4 16)")
    parser.add_argument("--context", type=int, nargs="+", metavar="N", help="tokens of each text (default: 512)")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw speed-up and time by K")
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output, and nothing else")
    add_decoding_options(
        parser, nargs="+", help="numbers of drafts to choose from, at most 15 (default: 1 2 3 5 8); 0 always is one"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    drafts = _drafts(args)
    options = generate_options(argparse.Namespace(**{**vars(args), "draft": 0}))
    if args.plot is not None:
        check_output(args.plot)
        _need_matplotlib()

    from specjax.analysis import planning
    from specjax.cli.progress import count_progress
    from specjax.cli.text import console
    from specjax.traces.trace import Trace

    if args.prompts is None and args.trace_file is None and args.model is not None:
        raise UsageError("no prompts: give --prompts, or --trace with a file that generate --trace FILE.npz wrote")
    if args.trace_file is not None and args.against:
        raise UsageError("a trace says nothing of other drafters: give --prompts, or leave --against out")
    trace = None if args.trace_file is None else Trace.load(args.trace_file)
    model = load_model(args, need_tokenizer=trace is None)
    others = {
        name: load_model(argparse.Namespace(**{**vars(args), "drafter": [name], "quiet": True}), need_tokenizer=True)
        for name in args.against
    }
    with count_progress("measurements") as progress:
        try:
            plan = planning.plan(
                model,
                _prompts(args, model) if trace is None else (),
                others=others,
                trace=trace,
                drafts=drafts,
                batches=args.batch or planning.BATCHES,
                contexts=args.context,
                options=replace(options, ignore_eos=True),
                progress=progress,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
    if args.plot is not None:
        plan.plot().savefig(args.plot, dpi=120)
    if args.json:
        print(json.dumps({"model": str(model.path), "plan": _document(plan)}))
    else:
        for drafter in plan.models:
            _print_table(model, plan, drafter)
        for sentence in plan.advice():
            console().print(sentence, highlight=False)
    return 0


def _drafts(args: argparse.Namespace) -> list[int] | None:
    if args.draft is None:
        return None
    if "auto" in args.draft:
        raise UsageError("--draft auto: a plan is what makes it unnecessary; give numbers")
    return [k for k in args.draft if k]


def _need_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError("--plot needs matplotlib: pip install 'specjax[analysis]'") from error


def _prompts(args: argparse.Namespace, model: Model) -> list[list[int]]:
    from specjax.evaluation.prompts import read_prompts

    if args.prompts is None:
        return [model.encode(DEFAULT_PROMPT)]
    return [model.encode(line.prompt) for line in read_prompts(args.prompts)]


def _document(plan: Plan) -> list[dict[str, Any]]:
    return [
        {
            "batch": each.batch,
            "context": each.context,
            "drafter": each.drafter,
            "draft": each.k,
            "draft_per_round": each.cost.draft,
            "verify_per_round": each.cost.verify,
            "tokens_per_round": each.tokens_per_round,
            "tokens_per_round_error": None if each.error != each.error else each.error,
            "tokens_per_second": each.tokens_per_second,
            "speedup": each.speedup,
            "break_even": each.break_even,
        }
        for each in plan.forecasts
    ]


def _print_table(model: Model, plan: Plan, drafter: str) -> None:
    from rich.table import Table

    from specjax.cli.text import console

    table = Table(title=f"{model.path.name}, drafted for by {drafter}", title_justify="left", box=None)
    for column in ("batch", "context", "K", "draft ms", "verify ms", "tau", "tok/s", "speed-up", "even at"):
        table.add_column(column, justify="right", no_wrap=True)
    for each in plan.forecasts:
        if each.drafter not in ("", drafter):
            continue
        table.add_row(
            str(each.batch),
            str(each.context),
            str(each.k),
            f"{1e3 * each.cost.draft:.3f}",
            f"{1e3 * each.cost.verify:.3f}",
            f"{each.tokens_per_round:.2f} ± {each.error:.2f}",
            f"{each.tokens_per_second:.1f}",
            f"{each.speedup:.2f}",
            "never" if each.break_even is None else f"{each.break_even:.2f}" if each.k else "",
            style="bold" if each == plan.best(each.batch, each.context) else None,
        )
    console().print(table)
