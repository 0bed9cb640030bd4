"""`specjax imatrix`: an importance matrix, measured on text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specjax.cli.options import add_command, add_model_options, check_output, load_model
from specjax.cli.runtime import UsageError, say

DESCRIPTION = """\
Run a model over text and measure which columns of its matrices count: the mean squares of what they are multiplied
with, of every expert by itself. specjax quantize and llama-quantize make smaller errors there when they are given the
file with --imatrix.

Choose text like that which the model will read and write; some 100 chunks are enough. The multi-token-prediction head
is not measured, since it is not quantized to few bits.
"""

EPILOG = """\
examples:
  specjax imatrix --model model-BF16.gguf --text calibration.txt --out imatrix.gguf --chunks 100
  specjax quantize model-BF16.gguf model-Q4_K_M.gguf --type Q4_K_M --imatrix imatrix.gguf
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "imatrix", "measure an importance matrix for quantize", DESCRIPTION, EPILOG, run)
    add_model_options(parser)
    parser.add_argument("--text", type=Path, required=True, metavar="F", help="UTF-8 text")
    parser.add_argument("--out", type=Path, required=True, metavar="F.gguf", help="where to; whole or not at all")
    parser.add_argument("--chunks", type=int, metavar="N", help="chunks at most (default: the whole text)")
    parser.add_argument("--ctx", type=int, default=512, metavar="T", help="tokens of a chunk (default: 512)")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from checkpoints.quantization import write_imatrix
    from specjax.analysis.calibration import collect_importance
    from specjax.cli.progress import count_progress

    if args.chunks is not None and args.chunks < 1:
        raise UsageError(f"--chunks is {args.chunks}; it must be positive")
    check_output(args.out)
    try:
        text = args.text.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{args.text} is not UTF-8 text: {error}") from error
    model = load_model(args, need_tokenizer=True)
    with count_progress("reading") as progress:
        matrix = collect_importance(
            model, text, chunk_size=args.ctx, max_chunks=args.chunks, datasets=[args.text.name], progress=progress
        )
    write_imatrix(args.out, matrix)
    say(f"wrote {args.out}: {len(matrix.entries)} matrices over {matrix.chunk_count} chunks of {args.ctx} tokens")
    return 0
