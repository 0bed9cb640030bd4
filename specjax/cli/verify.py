"""`specjax verify`: whether a checkpoint is what its family demands."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specjax.cli.options import add_command

DESCRIPTION = """\
Check checkpoints (GGUF files, Hugging Face or Orbax folders) against the invariants of their family: names, shapes and
types of all tensors, complete multi-token-prediction (MTP) heads, orderings and centroids of assistants, tied heads,
finite values and block scales, a tokenizer that fits. Every violation is explained, with what to do about it.
"""

EPILOG = """\
examples:
  specjax verify model.gguf
  specjax verify Qwen3.5-4B/ model.orbax --fast        leave the values unread
  specjax verify *.gguf --json

exit status: 0 nothing is wrong, 1 something is, 2 there is no such file
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "verify", "check that model files are whole and right", DESCRIPTION, EPILOG, run)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE|DIR", help="GGUF file, or folder")
    parser.add_argument("--fast", action="store_true", help="do not read the values of the tensors")
    parser.add_argument("--json", action="store_true", help="one JSON object per file on the standard output")


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if something is wrong."""
    from checkpoints.locate import locate
    from checkpoints.verifier import verify
    from specjax.cli.progress import byte_progress
    from specjax.models.registry import FAMILIES

    wrong = False
    located = [(path, locate(path)) for path in args.files]
    for path, found in located:
        with byte_progress(f"reading {path.name}") as progress:
            report = verify(found, FAMILIES, fast=args.fast, progress=progress)
        wrong = wrong or bool(report.errors)
        if args.json:
            print(json.dumps({"path": str(path), "ok": not report.errors, **asdict(report)}))
        else:
            _print(path, report)
    return int(wrong)


def _print(path: Path, report: Any) -> None:
    from specjax.cli.text import console

    out = console()
    for line in report.checked:
        out.print(f"ok     {line}", markup=False)
    for finding in report.findings:
        out.print(f"{finding.level:<6} {finding.what}", markup=False)
        out.print(f"       fix: {finding.fix}", markup=False)
    count = len(report.errors)
    verdict = f"{count} {'thing is' if count == 1 else 'things are'} wrong" if count else "nothing is wrong"
    out.print(f"{path}: {verdict}", markup=False)
