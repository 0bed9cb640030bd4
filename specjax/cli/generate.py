"""`specjax generate`: continue a prompt, show what drafting brought, and check it against plain decoding."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.options import (
    add_command,
    add_decoding_options,
    add_model_options,
    add_prompt_options,
    check_output,
    generate_options,
    load_model,
    read_prompt,
)
from specjax.cli.runtime import UsageError

if TYPE_CHECKING:
    from specjax.runtime.model import Model
    from specjax.runtime.request import Update
    from specjax.runtime.stream import TextStream

DEFAULT_PROMPT = '''\
def is_file(path):
    """Return True if path is a regular file."""
    try:
'''

DESCRIPTION = """\
Continue a prompt. The text goes to the standard output as it comes, a summary to the standard error.

A model with a multi-token-prediction (MTP) head drafts K tokens per round and verifies them in one pass. Greedy output
is the same as without drafts, token for token; with --temperature, --accept chooses what is kept the same: the
distribution (rejection, block) or the very tokens of the seed (coupled).
"""

EPILOG = """\
examples:
  specjax generate                                           the bundled model and a prompt that suits it
  specjax generate --prompt "def main(" --max-tokens 200
  specjax generate --prompt "class Queue:" --compare         also decode plainly: equal tokens? how much faster?
  specjax generate --prompt-file story.txt --model model.gguf --temperature 0.8 --top-p 0.95 --seed 7
  specjax generate --tokens 1,2,3 --ignore-eos --json        one JSON object on the standard output
  specjax generate --draft 5 --draft-p-min 0.5 --trace trace.ndjson
  specjax generate --draft 5 --trace trace.npz               with probabilities; for specjax.Trace.load

--compare exits with 1 if the tokens differ and rounding does not explain it.
The first run of a model compiles its programs; they are kept (see specjax --help, SPECJAX_CACHE).
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "generate", "continue a prompt", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    add_prompt_options(parser)
    add_decoding_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--compare", action="store_true", help="decode plainly as well; compare tokens and speed")
    output.add_argument(
        "--trace",
        dest="trace_file",
        type=Path,
        metavar="FILE",
        help="write what drafting did: arrays to FILE.npz or FILE.parquet, else one JSON event a line",
    )
    output.add_argument("--json", action="store_true", help="one JSON object on the standard output, and nothing else")
    output.add_argument(
        "--quiet", action="store_true", help="no summary, and no measuring of what drafting and verification cost"
    )


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if `--compare` found a difference that is not a near-tie."""
    options = generate_options(args)
    prompt = read_prompt(args)
    if prompt is None:
        if args.model is not None:
            raise UsageError("no prompt: give --prompt, --prompt-file or --tokens")
        prompt = DEFAULT_PROMPT
    events = arrays = None
    if args.trace_file is not None:
        from specjax.traces.files import FORMATS

        check_output(args.trace_file)
        events, arrays = (None, args.trace_file) if args.trace_file.suffix in FORMATS else (args.trace_file, None)
        options = replace(options, trace=arrays is not None)

    from checkpoints.file_errors import named
    from specjax.analysis.profiling import round_cost
    from specjax.cli import generate_report as report
    from specjax.cli.comparison import compare

    begin = time.perf_counter()
    model = load_model(args, need_tokenizer=isinstance(prompt, str))
    load_seconds = time.perf_counter() - begin
    stream = model.stream(prompt, options)
    decoder = stream.engine.decoder
    if not decoder.drafts and args.compare:
        raise UsageError("--compare: nothing to compare, this is plain decoding; draft with --draft 3 or so")
    if not decoder.drafts and events is not None:
        raise UsageError("--trace records drafts, and plain decoding makes none; draft with --draft 3 or so")

    _show_prompt(prompt, args)
    _write_out(stream, model, args, events)
    generation = stream.result
    if arrays is not None and generation.trace is not None:
        with named(arrays):
            generation.trace.save(arrays)
    outcome = report.Outcome(model, options, decoder, generation, load_seconds)
    if not args.quiet and not options.finds_depth:
        outcome.cost = round_cost(decoder, model.params, stream.engine.state)
    if args.compare:
        outcome.comparison = compare(model, prompt, options, generation, outcome.cost)
    if args.json:
        print(json.dumps(report.as_document(outcome)))
    elif not args.quiet or args.compare:
        report.print_summary(outcome)
    return 1 if outcome.comparison and outcome.comparison.failed else 0


def _show_prompt(prompt: str | list[int], args: argparse.Namespace) -> None:
    """The standard output gets the continuation only; a person at a terminal, or without a prompt, sees both."""
    if args.json or args.quiet or not isinstance(prompt, str):
        return
    if prompt is DEFAULT_PROMPT or (sys.stderr.isatty() and sys.stdout.isatty()):
        from specjax.cli.text import console

        console(stderr=True).print(prompt, end="", markup=False, style="dim")
        sys.stderr.flush()


def _write_out(stream: TextStream, model: Model, args: argparse.Namespace, events: Path | None) -> None:
    """Run the generation; print it as it comes, and write the events of drafting."""
    with ExitStack() as stack:
        if events is not None:
            from checkpoints.file_errors import named, written
            from specjax.runtime.recording import TraceWriter

            writer = TraceWriter(stack.enter_context(written(events)))

            def trace(update: Update) -> None:
                with named(events):
                    writer.add(update)

            stream.observers.append(trace)
        last = ""
        for piece in _pieces(stream, model):
            if not args.json:
                print(piece, end="", flush=True)
            last = piece
        if not args.json and not last.endswith("\n"):
            print(flush=True)


def _pieces(stream: TextStream, model: Model) -> Iterator[str]:
    """Text as it comes; token ids if the model has no tokenizer."""
    if model.tokenizer is not None:
        yield from stream
        return
    separator = ""
    for update in stream.updates():
        for token in update.tokens:
            yield f"{separator}{token}"
            separator = ","
