"""`specjax quantize`: a checkpoint with fewer bits to a value."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.convert import names, size
from specjax.cli.options import add_command
from specjax.cli.runtime import UsageError, say

if TYPE_CHECKING:
    from checkpoints.quantization import Quantization, QuantizeOptions

DESCRIPTION = """\
Quantize a checkpoint into a GGUF that specjax and llama.cpp run: every tensor keeps its name and its place, every key
of the metadata its value, and the tokenizer stays.

T is one of
  Q8_0 Q6_K Q5_K_M Q5_K_S Q4_K_M Q4_K_S          mixes of types as llama-quantize makes them; Q5_K and Q4_K are Q5_K_M
                                                 and Q4_K_M, unless --pure
  Q5_1 Q5_0 Q4_1 Q4_0 IQ4_XS IQ4_NL TQ4_1S TQ3_1S
                                                 most matrices in this type, the output head in Q6_K. TQ types are read
                                                 by specjax and by the forks of llama.cpp that define them
  F32 BF16 F16                                   not quantized

Multi-token-prediction (MTP) heads and assistants get Q8_0 at least: drafts that are accepted less often cost more than
their bits. Norms, biases, routers, convolutions, the token order of assistants and other small tensors stay as they
are. Rows that are no multiple of a type's block get the nearest type with blocks of 32, and --dry-run says so.

With turbo KV caches, attn_q and attn_k want 6 bits or more: --tensor-type 'attn_[qk]\\.=Q6_K'.
"""

EPILOG = """\
examples:
  specjax quantize Qwen3.5-4B/ Qwen3.5-4B-Q4_K_M.gguf --type Q4_K_M
  specjax quantize model-BF16.gguf model-Q4_K_M.gguf --type Q4_K_M --imatrix imatrix.gguf     see specjax imatrix
  specjax quantize model.gguf small.gguf --type Q4_K_M --dry-run
  specjax quantize big-00001-of-00003.gguf small.gguf --type Q4_K_M --split-size 4G     small-00001-of-0000N.gguf
  specjax quantize model.gguf mixed.gguf --type Q5_K_M --tensor-type ffn_down=Q6_K --tensor-type 'blk\\.0\\.=Q8_0'
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "quantize", "quantize a checkpoint into a GGUF", DESCRIPTION, EPILOG, run)
    parser.add_argument(
        "source",
        type=Path,
        metavar="SRC",
        help="GGUF file (any part of a split one), Hugging Face folder or Orbax folder",
    )
    parser.add_argument("destination", type=Path, metavar="DST", help="GGUF file to make")
    parser.add_argument("--type", required=True, metavar="T", help="type, or mix of types")
    parser.add_argument(
        "--tensor-type",
        action="append",
        default=[],
        type=pattern_and_type,
        metavar="REGEX=T",
        help="type of the matrices in whose name REGEX is found, the head's too; the first one that fits counts",
    )
    parser.add_argument("--tensor-type-file", type=Path, metavar="F", help="a file with REGEX=T on each line")
    parser.add_argument("--imatrix", type=Path, metavar="F", help="importance matrix: what counts most errs least")
    parser.add_argument(
        "--gguf-type",
        action="append",
        default=[],
        type=number_and_type,
        metavar="N=T",
        help="SRC has tensors of the type number N, by which a fork of llama.cpp means T; DST gets the usual number",
    )
    parser.add_argument("--split-size", type=size, metavar="N[K|M|G]", help="largest file (default: one file)")
    parser.add_argument("--pure", action="store_true", help="one type for all matrices, the head and the output too")
    parser.add_argument("--drop-mtp", action="store_true", help="leave the MTP head out")
    parser.add_argument("--dry-run", action="store_true", help="show the type of every tensor, and write nothing")
    parser.add_argument("--force", action="store_true", help="replace what is there")


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    from checkpoints.quantization import prepare, read_imatrix
    from specjax.cli.progress import byte_progress
    from specjax.models.registry import FAMILIES

    importance = None if args.imatrix is None else read_imatrix(args.imatrix)
    quantization = prepare(args.source, args.destination, FAMILIES, options_of(args), importance)
    if args.dry_run:
        _print_plan(quantization)
        return 0
    for line in _remarks(quantization):
        say(line)
    with byte_progress("quantizing") as progress:
        quantization.run(progress)
    say(f"wrote {names(quantization.files)}: {_summary(quantization)}")
    return 0


def options_of(args: argparse.Namespace) -> QuantizeOptions:
    """The options of a command line.

    Raises:
        UsageError: a line of --tensor-type-file is not REGEX=T.
        CheckpointError: a type that cannot be written.
    """
    from checkpoints.quantization import QuantizeOptions

    pairs = list(args.tensor_type)
    if args.tensor_type_file is not None:
        for number, line in enumerate(args.tensor_type_file.read_text(encoding="utf-8").splitlines(), start=1):
            if line.strip() and not line.lstrip().startswith("#"):
                try:
                    pairs.append(pattern_and_type(line.strip()))
                except argparse.ArgumentTypeError as error:
                    raise UsageError(f"{args.tensor_type_file}, line {number}: {error}") from error
    return QuantizeOptions(
        args.type, args.pure, tuple(pairs), tuple(args.gguf_type), args.drop_mtp, args.force, args.split_size
    )


def pattern_and_type(text: str) -> tuple[str, str]:
    """Split "ffn_down=Q6_K" into the pattern and the type, ("ffn_down", "Q6_K")."""
    pattern, equals, kind = text.rpartition("=")
    if not (pattern and equals and kind):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form REGEX=T, such as ffn_down=Q6_K")
    return pattern, kind


def number_and_type(text: str) -> tuple[int, str]:
    """Split "47=TQ4_1S" into the number and the type, (47, "TQ4_1S")."""
    number, equals, kind = text.partition("=")
    if not (number.isdecimal() and equals and kind):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form N=T, such as 47=TQ4_1S")
    return int(number), kind


def _remarks(quantization: Quantization) -> list[str]:
    from checkpoints.gguf.ggml_types import GGML_TYPES

    lines = []
    for number, name in quantization.options.type_codes:
        kind = GGML_TYPES[name]
        lines.append(f"type number {number} is read as {name}: {kind.values} values in {kind.num_bytes} bytes")
    if quantization.requantized:
        kinds = sorted({tensor.source.type for tensor in quantization.requantized})
        lines.append(
            f"{len(quantization.requantized)} tensors are quantized already ({', '.join(kinds)}); errors add up, so"
            " quantize from the original if you have it"
        )
    if unknown := quantization.without_importance:
        names = ", ".join(tensor.source.name for tensor in unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        lines.append(f"the importance matrix knows nothing of {len(unknown)} quantized tensors: {names}")
    if unfit := [tensor for tensor in quantization.tensors if "do not divide" in tensor.note]:
        kinds = sorted({f"{tensor.note.rsplit(' ', 1)[1]} -> {tensor.type}" for tensor in unfit})
        lines.append(f"rows of {len(unfit)} tensors do not divide into blocks: {', '.join(kinds)}")
    return lines


def _summary(quantization: Quantization) -> str:
    from checkpoints.quantization import sizes_by_type

    types = ", ".join(f"{count} {kind}" for kind, (count, _) in sizes_by_type(quantization.tensors).items())
    return f"{quantization.num_bytes / 1e6:.1f} MB in {len(quantization.tensors)} tensors ({types})"


def _print_plan(quantization: Quantization) -> None:
    from specjax.cli.text import console, print_table

    rows = [("TENSOR", "SHAPE", "IS", "BECOMES", "BYTES", "")]
    for tensor in quantization.tensors:
        shape = " x ".join(map(str, tensor.source.shape))
        rows.append((tensor.source.name, shape, tensor.source.type, tensor.type, str(tensor.num_bytes), tensor.note))
    verdict = f"{quantization.destination} would get {_summary(quantization)}; nothing is written"
    print_table(console(), rows, (*_remarks(quantization), verdict))
