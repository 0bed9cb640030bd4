"""`specjax check`: whether a drafter leaves what the model says as it is."""

from __future__ import annotations

import argparse
import json
from typing import Any

from specjax.cli.options import add_command, add_decoding_options, add_model_options, generate_options, load_model
from specjax.cli.runtime import UsageError

DESCRIPTION = """\
Look for ways in which drafting changes what a model says. Any files will do; what the command looks at is how they are
drafted, verified, accepted and rolled back here, on this machine and with these settings.

  rules                 every text of a tiny language is exactly as probable as it must be (enumeration)
  what is verified      whether a draft counts is decided before it is drawn
  stated probabilities  they sum to 1
  draws                 drafts have the stated probabilities (chi-square tests)
  greedy, coupled       the tokens are those of plain decoding; near-ties are reported and allowed
  plain decoding, texts each token has the target's probabilities (chi-square tests), under both rules that keep them

A drafter that guesses badly passes: it costs time, and changes nothing. In Python, specjax.assert_lossless(model) does
the same, also for drafters that you wrote yourself.
"""

EPILOG = """\
examples:
  specjax check                                            the bundled model and its MTP head
  specjax check model.gguf --drafter assistant.gguf --draft 4
  specjax check model.gguf --drafter ngram --temperature 0.8 --top-p 0.95 --prompt "def main("
  specjax check model.gguf --samples 4096                  sees smaller faults, takes longer
  specjax check model.gguf --json > report.json

If texts are to be drawn and --temperature is 0, they are drawn at temperature 1. --seed makes another run of the same
checks; equal seeds give equal reports. A lossless drafter fails by chance once in 1 / --alarm-rate runs.

exit status: 0 all checks passed, 1 one failed
"""

DECIDED_HERE = ("accept", "stop", "ignore_eos", "logprobs")
"""Options of decoding that this command does not take."""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(
        subparsers, "check", "look for ways in which a drafter changes the text", DESCRIPTION, EPILOG, run
    )
    add_model_options(parser, positional=True)
    parser.add_argument(
        "--prompt",
        action="append",
        metavar="TEXT",
        help="text to continue; can be repeated (default: three short ones)",
    )
    parser.add_argument(
        "--samples",
        type=int,
        metavar="N",
        help="texts to draw for each rule; four times as many single rounds are drafted (default: 512)",
    )
    parser.add_argument(
        "--alarm-rate",
        type=float,
        default=1e-6,
        metavar="P",
        help="how often a lossless drafter may fail by chance, all tests together (default: 1e-6)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output, and nothing else")
    add_decoding_options(parser)


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if a check failed."""
    for name in DECIDED_HERE:
        if getattr(args, name):
            raise UsageError(f"--{name.replace('_', '-')}: of no use here; the checks decide that themselves")
    if args.max_tokens is None:
        args.max_tokens = 64
    options = generate_options(args)

    from specjax.analysis.lossless.check import DEFAULT_SAMPLES, check_lossless
    from specjax.cli.progress import count_progress
    from specjax.cli.text import console

    model = load_model(args, need_tokenizer=args.prompt is not None)
    samples = DEFAULT_SAMPLES if args.samples is None else args.samples
    with count_progress("checks") as progress:
        report = check_lossless(
            model, args.prompt, options, samples=samples, alarm_rate=args.alarm_rate, progress=progress
        )
    if args.json:
        print(json.dumps(report.as_document()))
    else:
        console().print(str(report), markup=False, highlight=False, soft_wrap=True)
    return int(not report.ok)
