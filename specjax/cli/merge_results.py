"""`specjax merge-results`: put the result files of an evaluation on several machines together."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specjax.cli.evaluate import add_telling_options, check_outputs, tell
from specjax.cli.options import add_command
from specjax.cli.runtime import say

DESCRIPTION = """\
Put together what `specjax eval --shard I/N` has written on several machines. All N shards must be there, with a result
for every prompt, and their settings must be the same. If something is missing, it is named, and nothing is written.

The merged file has the order of the prompts. It is the result file of a run without shards: `specjax eval` with the
same options goes on from it.
"""

EPILOG = """\
examples:
  specjax merge-results --prompts p.jsonl --out all.jsonl part-1.jsonl part-2.jsonl part-3.jsonl
  specjax merge-results --prompts p.jsonl --out all.jsonl --report all.html part-*.jsonl
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    help = "put the results of several machines together"
    parser = add_command(subparsers, "merge-results", help, DESCRIPTION, EPILOG, run)
    parser.add_argument("parts", type=Path, nargs="+", metavar="PART.jsonl", help="the result files of all shards")
    parser.add_argument("--prompts", type=Path, required=True, metavar="F.jsonl", help="the prompts of the run")
    parser.add_argument("--out", type=Path, required=True, metavar="R.jsonl", help="one result a line")
    add_telling_options(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status, that of `specjax eval`."""
    from specjax.evaluation import merge

    check_outputs(args, *args.parts)
    merged = merge(args.parts, args.prompts.read_bytes(), str(args.prompts), args.out)
    if not args.quiet:
        say(f"wrote {len(merged.results)} results to {args.out}")
    return tell(merged, args)
