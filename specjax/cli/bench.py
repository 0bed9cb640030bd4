"""`specjax bench`: how fast a model decodes with K drafts a round, and how fast it could."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.generate import DEFAULT_PROMPT
from specjax.cli.options import (
    DRAFTING,
    add_command,
    add_decoding_options,
    add_model_options,
    generate_options,
    load_model,
)
from specjax.cli.runtime import UsageError

if TYPE_CHECKING:
    from specjax.analysis.benchmark import Speed
    from specjax.decoding.acceptance import Synthetic
    from specjax.runtime.model import Model
    from specjax.runtime.options import GenerateOptions

RANDOM_TOKENS, DEFAULT_TURNS = 32, 5

DESCRIPTION = """\
Measure tokens per second of plain decoding and of rounds with K drafts, at batch 1, beside what the parts of a round
allow. All Ks decode the same prompts in turns, because the speed of machines drifts; medians are printed.

How much is gained depends on how many drafts are accepted, which only the trained model on prompts like yours can tell.
What a round costs does not depend on what the weights say. --synthetic-acceptance draws by lot whether each draft is
accepted, with probabilities that you know from elsewhere, and everything else runs as in real decoding: so speed can be
measured with random weights of the right shape. Texts made that way mean nothing and are thrown away.
"""

EPILOG = """\
columns:
  K           drafts in a round; 0 is plain decoding, auto what was found while decoding
  tok/s       emitted tokens over the seconds of all rounds
  tau         tokens per round
  expected    the tau that the acceptance of single drafts predicts: 1 + p1 + p1 p2 + ...
  round       milliseconds of a round, whole
  draft, verify
              milliseconds of its halves, timed apart: K drafts, and the pass over K + 1 tokens with its commit
  speed-up    tok/s over those of plain decoding
  bound       the speed-up that the halves allow: tau t_verify(1) / (t_verify(K + 1) + t_draft)

examples:
  specjax bench                                            the bundled model and a prompt that suits it
  specjax bench model.gguf --prompts prompts.jsonl --draft 1 2 3 4 5
  specjax bench --draft 1 3 auto                           also the number that finds itself
  specjax bench random.gguf --draft 1 3 --synthetic-acceptance 0.8,0.7,0.6
  specjax bench random.gguf --draft 3 --synthetic-acceptance 0.8,0.7,0.6 --prompt-length 32000 --json

The same --seed draws the same lots, random prompts and samples.
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "bench", "measure the speed of decoding with drafts", DESCRIPTION, EPILOG, run)
    add_model_options(parser, positional=True)
    parser.add_argument(
        "--synthetic-acceptance",
        type=probabilities,
        metavar="P1,P2,...",
        help="accept draft 1 with probability P1, then draft 2 with P2, and so on, whatever the model says of them;"
        " tokens that end a text are passed over",
    )
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompts",
        type=Path,
        metavar="F.jsonl",
        help="continue these, one JSON object a line as of specjax eval; its max_tokens is passed over",
    )
    prompt.add_argument(
        "--prompt-length",
        type=int,
        metavar="N",
        help=f"continue N random tokens (default with synthetic acceptance: {RANDOM_TOKENS})",
    )
    parser.add_argument(
        "--turns", type=int, default=DEFAULT_TURNS, metavar="N", help=f"that each K runs (default: {DEFAULT_TURNS})"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output, and nothing else")
    add_decoding_options(
        parser,
        nargs="+",
        help="tokens to draft in a round, at most 15, or auto; several of them in turns; plain decoding always runs"
        " besides (default: 3 if there is a drafter)",
    )


def probabilities(text: str) -> Synthetic:
    """The rule that accepts with the probabilities in a text such as "0.8,0.7"."""
    from specjax.decoding.acceptance import Synthetic

    try:
        return Synthetic(tuple(float(part) for part in text.split(",")))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of probabilities like 0.8,0.7,0.6") from error


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    synthetic: Synthetic | None = args.synthetic_acceptance
    options = _options(args)

    from specjax.analysis.benchmark import measure_speed
    from specjax.cli.progress import count_progress

    texts = args.prompts is not None or (synthetic is None and args.prompt_length is None)
    if texts and args.prompts is None and args.model is not None:
        raise UsageError("no prompts: give --prompts, or --synthetic-acceptance, which takes random tokens")
    model = load_model(args, need_tokenizer=texts)
    with count_progress("runs") as progress:
        speeds = measure_speed(
            model, _prompts(args, model), options, synthetic=synthetic, turns=args.turns, progress=progress
        )
    if args.json:
        print(json.dumps(_document(args, model, options[0], speeds)))
    else:
        _print_table(model, speeds, synthetic)
    return 0


def _options(args: argparse.Namespace) -> list[GenerateOptions]:
    """Those of plain decoding, then those of every other K."""
    if args.synthetic_acceptance is not None:
        given = [name for name in (*DRAFTING, "accept") if getattr(args, name) is not None]
        if given:
            flag = "--" + given[0].replace("_", "-")
            raise UsageError(f"{flag}: --synthetic-acceptance alone decides how many drafts are accepted")
        args.ignore_eos = True
    if args.turns < 1:
        raise UsageError(f"--turns is {args.turns}; give at least 1")
    several = [None] if args.draft is None else [k for k in dict.fromkeys(args.draft) if k]
    drafting = [generate_options(argparse.Namespace(**{**vars(args), "draft": k})) for k in several]
    first = drafting[0] if drafting else generate_options(argparse.Namespace(**{**vars(args), "draft": 0}))
    return [replace(first, draft=0), *drafting]


def _prompts(args: argparse.Namespace, model: Model) -> list[list[int]]:
    from specjax.analysis.benchmark import random_prompt
    from specjax.evaluation.prompts import read_prompts

    if args.prompts is not None:
        return [model.encode(line.prompt) for line in read_prompts(args.prompts)]
    if args.prompt_length is None and args.synthetic_acceptance is None:
        return [model.encode(DEFAULT_PROMPT)]
    length = RANDOM_TOKENS if args.prompt_length is None else args.prompt_length
    return [random_prompt(model.target.vocab_size, length, args.seed or 0)]


def _document(args: argparse.Namespace, model: Model, options: GenerateOptions, speeds: list[Speed]) -> dict[str, Any]:
    synthetic: Synthetic | None = args.synthetic_acceptance
    return {
        "model": str(model.path),
        "dtype": args.dtype,
        "packed": args.packed,
        "place": args.place,
        "mesh": args.mesh,
        "drafter": args.drafter,
        "draft_vocab": None if args.draft_vocab is None else str(args.draft_vocab),
        "synthetic_acceptance": list(synthetic.probabilities) if synthetic else None,
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "kv_type_k": options.kv_type_k,
        "kv_type_v": options.kv_type_v,
        "seed": options.seed,
        "turns": args.turns,
        "speeds": [speed.as_document() for speed in speeds],
    }


def _print_table(model: Model, speeds: list[Speed], synthetic: Synthetic | None) -> None:
    from rich.table import Table

    from specjax.cli.generate_report import rounds_line
    from specjax.cli.text import console

    source = "acceptance as measured on the prompts"
    if synthetic:
        listed = ", ".join(f"{p:g}" for p in synthetic.probabilities)
        source = f"SYNTHETIC acceptance {listed}: drawn by lot, not the model's"
    table = Table(title=f"{model.path.name}, batch 1; {source}", title_justify="left", box=None)
    for column in ("K", "tok/s", "tau", "expected", "round ms", "draft ms", "verify ms", "speed-up", "bound"):
        table.add_column(column, justify="right")
    for speed in speeds:
        expected = speed.expected_tokens_per_round
        table.add_row(
            str(speed.n_drafts),
            f"{speed.tokens_per_second:.1f}",
            f"{speed.stats.tokens_per_round:.2f}",
            "" if expected is None else f"{expected:.2f}",
            f"{1e3 * speed.round_seconds:.3f}",
            *("" if seconds is None else f"{1e3 * seconds:.3f}" for seconds in _halves(speed)),
            f"{speed.speedup:.2f}",
            "" if speed.bound is None else f"{speed.bound:.2f}",
        )
    console().print(table)
    for speed in speeds:
        if speed.n_drafts:
            shares = " ".join(f"{share:.3f}" for share in speed.stats.acceptance_by_position)
            console().print(f"K = {speed.n_drafts}: accepted by position {shares}")
        if speed.n_drafts == "auto":
            console().print(f"K = auto: {rounds_line(speed.stats)}")


def _halves(speed: Speed) -> tuple[float | None, float | None]:
    """Seconds of drafting and of verification; None where rounds differ."""
    return (None, None) if speed.cost is None else (speed.cost.draft, speed.cost.verify)
