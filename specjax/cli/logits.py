"""`specjax logits`: the target's logits of a prompt, as a numpy file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specjax.cli.options import (
    add_command,
    add_model_options,
    add_prompt_options,
    check_output,
    load_model,
    read_prompt,
)
from specjax.cli.runtime import UsageError

DESCRIPTION = """\
Write the target's logits of every position of a prompt: float32 [T, V]; row p predicts the token after position p.
"""

EPILOG = """\
examples:
  specjax logits --model model.gguf --tokens 1,2,3 --out logits.npy
  python -c "import numpy; print(numpy.load('logits.npy').argmax(-1))"
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "logits", "write the logits of a prompt", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    add_prompt_options(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="F.npy", help="where to; written whole or not at all"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    import numpy as np

    from checkpoints.atomic import replaced

    prompt = read_prompt(args)
    if prompt is None:
        raise UsageError("no prompt: give --tokens, --prompt or --prompt-file")
    check_output(args.out)
    logits = load_model(args, need_tokenizer=isinstance(prompt, str)).logits(prompt)
    with replaced(args.out) as temporary, temporary.open("wb") as file:
        np.save(file, logits)
    return 0
