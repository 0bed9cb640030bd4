"""`specjax`: the program and its commands. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from specjax import __version__
from specjax.cli import (
    bench,
    chat,
    check,
    convert,
    diverge,
    evaluate,
    generate,
    imatrix,
    inspect,
    logits,
    merge_results,
    plan,
    plan_memory,
    quantize,
    score,
    serve,
    train,
    verify,
    vocabulary,
)
from specjax.cli.hosts import joined
from specjax.cli.runtime import (
    BAD_INPUT,
    BROKEN_PIPE,
    DEBUG_VARIABLE,
    INTERRUPTED,
    UsageError,
    chosen_kernels,
    lasting_interrupts,
    message_of,
    notices,
    one_line_warnings,
    say,
)

DESCRIPTION = """\
Speculative decoding in JAX: language models that carry their own drafters (multi-token prediction) write several tokens
per pass, without changing what they say.
"""

EPILOG = """\
examples:
  specjax generate                                        the bundled model continues a Python function
  specjax generate --prompt "def main(" --draft 3 --compare
  specjax generate --model Qwen3.5-4B-Q8_0.gguf --prompt "Once upon a time" --temperature 0.8 --seed 1
  specjax chat --model gemma-4-E4B-it-Q8_0.gguf           talk with a model, line by line
  specjax inspect model.gguf                              what is in a file, and whether it has a drafter
  specjax check model.gguf --drafter small.gguf           whether a drafter leaves the text as it is
  specjax diverge draft=3 draft=0 --prompt "def f("       where two texts that should be equal part, and why
  specjax convert model.gguf model.orbax                  between GGUF, safetensors and Orbax, and back
  specjax eval --prompts questions.jsonl --out answers.jsonl --batch 8
  specjax bench model.gguf --draft 1 2 3                  how fast, and how fast it could be
  specjax plan model.gguf --prompts prompts.jsonl         how many tokens to draft on this machine
  specjax plan-memory model.gguf --mesh 1x4 --device v5e  what fits on which devices
  specjax logits --tokens 1,2,3 --out logits.npy
  specjax score --prompt "import numpy as" --choice " np" --choice " numpy"

environment:
  SPECJAX_CACHE    folder for compiled programs, so that a second run starts fast
                   (default: $XDG_CACHE_HOME/specjax/xla or ~/.cache/specjax/xla; empty: no cache)
  SPECJAX_KERNELS  which kernels compute, as --kernels has it
  SPECJAX_API_KEY  the key that clients of serve must send, as --api-key has it
  SPECJAX_DEBUG    if set, errors come with a traceback

exit status: 0 success, 1 a check failed (generate --compare, inspect, verify, check, diverge, convert --verify), a
model does not fit (plan-memory), a prompt had an error (eval --keep-going, merge-results) or an engine failed for good
(serve), 2 bad input, 3 another process of the job was lost (--coordinator), 130 interrupted, 141 nobody reads the
output any more
"""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing the usage and leaving."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Report a wrong command line by an exception.

        Raises:
            UsageError: always.
        """
        raise UsageError(f"{message} (try: {self.prog} --help)")

    def parse_known_args(  # type: ignore[override]
        self, args: Any = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As the base class; but what a command does not know is refused by its own parser, which has the right help.

        Raises:
            UsageError: an option or a word is not known; the message names an option that looks like it, if there is
                one.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings if option != "-h"]
            close = difflib.get_close_matches(unknown[0].partition("=")[0], options, n=1)
            hint = f"; is {close[0]} meant?" if close else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole program; each command sets `run` to a function of the parsed arguments."""
    parser = Parser(
        prog="specjax",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specjax {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    reading = (inspect, verify, check, diverge, convert, quantize, imatrix, vocabulary, logits, score)
    for command in (generate, chat, serve, *reading, evaluate, merge_results, bench, plan, plan_memory, train):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed, as by >&-
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        parser = build_parser()
        args = parser.parse_args(argv)
        if "run" not in args:
            parser.print_help(sys.stderr)
            return BAD_INPUT
        with (
            one_line_warnings(),
            notices(getattr(args, "quiet", False)),
            lasting_interrupts(),
            chosen_kernels(getattr(args, "kernels", None)),
            joined(args),
        ):
            status = args.run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left, as `head` does. The interpreter must find nothing left to flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except SystemExit as request:
        if isinstance(request.code, str):
            say(f"error: {request.code}")
            return BAD_INPUT
        return int(request.code or 0)
    except Exception as error:
        message = message_of(error)
        if message is None or os.environ.get(DEBUG_VARIABLE):
            raise
        say(f"error: {message}")
        return BAD_INPUT
