"""`specjax convert`: checkpoints from one format into another."""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.options import DTYPES, add_command
from specjax.cli.runtime import say

if TYPE_CHECKING:
    from checkpoints.convert import Conversion

DESCRIPTION = """\
Convert a checkpoint between GGUF, Hugging Face safetensors and Orbax, with its multi-token-prediction (MTP) heads, its
tokenizer and its metadata. Values keep the type in which they are stored; what was packed stays packed in GGUF and
Orbax. A GGUF that went into Orbax comes out as the same file.

Tensors are read and written one at a time, whatever the size of the model. The destination appears under its name when
it is complete; a conversion that was interrupted or killed leaves nothing that could be taken for a model, and can be
run again.
"""

EPILOG = """\
examples:
  specjax convert Qwen3.5-4B/ Qwen3.5-4B.gguf
  specjax convert Qwen3.5-4B-Q4_K_M.gguf Qwen3.5-4B.orbax --verify
  specjax convert model.gguf model-hf --to hf --dtype bfloat16
  specjax convert model.gguf model.orbax --dry-run
  specjax convert big.gguf parts.gguf --split-size 4G      parts-00001-of-0000N.gguf
  specjax convert parts-00001-of-00003.gguf whole.gguf     and whole again
  specjax convert assistant/ assistant.gguf --tokenizer gemma-4-E4B-it/

In Python:
  import specjax
  from checkpoints.convert import ConvertOptions, prepare
  prepare("model.gguf", "model.orbax", specjax.FAMILIES).run()
  from checkpoints.orbax.folder import restore
  params = restore("model.orbax", sharding=lambda path, shape: NamedSharding(mesh, ...))

exit status: 0 success, 1 --verify found a difference (the destination is removed), 2 bad input, 130 interrupted
"""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(
        subparsers, "convert", "convert checkpoints between GGUF, safetensors and Orbax", DESCRIPTION, EPILOG, run
    )
    parser.add_argument("source", type=Path, metavar="SRC", help="GGUF file, Hugging Face folder or Orbax folder")
    parser.add_argument("destination", type=Path, metavar="DST", help="file or folder to make")
    parser.add_argument(
        "--to", choices=("gguf", "hf", "orbax"), help="format (default: told by the name: .gguf, .orbax)"
    )
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        help="of matrices of floating-point numbers (default: as they are stored; bfloat16 where packed ones must be"
        " decoded, which is so in safetensors)",
    )
    parser.add_argument("--split-size", type=size, metavar="N[K|M|G]", help="largest file (default: GGUF whole, hf 5G)")
    parser.add_argument("--drop-mtp", action="store_true", help="leave the MTP head out")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE|DIR", help="take the tokenizer of another checkpoint")
    parser.add_argument("--verify", action="store_true", help="read the result again and compare every parameter")
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    parser.add_argument("--force", action="store_true", help="replace what is there")


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if the result is not what it should be."""
    from checkpoints.convert import ConvertOptions, prepare
    from specjax.cli.progress import byte_progress
    from specjax.models.registry import FAMILIES

    options = ConvertOptions(args.to, args.dtype, args.split_size, args.drop_mtp, args.force, args.tokenizer)
    conversion = prepare(args.source, args.destination, FAMILIES, options)
    if args.dry_run:
        _print_plan(conversion)
        return 0
    for line in _changes(conversion):
        say(line)
    with byte_progress("converting") as progress:
        written = conversion.run(progress)
    say(f"wrote {names(written)}: {len(conversion.tensors)} tensors, {conversion.num_bytes / 1e6:.1f} MB")
    return _verify(conversion, written) if args.verify else 0


def size(text: str) -> int:
    """Bytes from "500M" or "4G"; units are powers of 1000, as they are on disks."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip().upper())
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size like 500M or 4G")
    return int(float(match[1]) * _UNITS[match[2]])


def _verify(conversion: Conversion, written: list[Path]) -> int:
    from checkpoints.convert import remove
    from specjax.cli.progress import byte_progress

    with byte_progress("verifying") as progress:
        found = conversion.compare(written, progress)
    if found.wrong:
        remove(written)
        differences = "\n  ".join(found.wrong[:20])
        say(f"error: {names(written)} differs from the source and is removed:\n  {differences}")
        return 1
    rounded = f", {found.rounded} within the rounding of their type" if found.rounded else ""
    say(f"verified: {found.equal} parameters are equal{rounded}")
    return 0


def _changes(conversion: Conversion) -> list[str]:
    lines = []
    if conversion.decoded:
        kinds = Counter(source.type for tensor in conversion.decoded for source in tensor.sources)
        of = ", ".join(f"{count} of type {kind}" for kind, count in kinds.items())
        to = " and ".join(sorted({tensor.info.type for tensor in conversion.decoded}))
        lines.append(f"packed tensors are decoded to {to}: {of}")
    for reason, count in Counter(conversion.left_out.values()).items():
        lines.append(f"{count} tensors are left out: {reason}")
    if conversion.without_tokenizer is not None:
        lines.append(
            f"no tokenizer is written: {conversion.without_tokenizer}. Give --tokenizer with a file or folder that has"
            " the right one"
        )
    if conversion.kept:
        lines.append(f"{len(conversion.kept)} tensors that no parameter holds are kept beside the parameters")
    return lines


def _print_plan(conversion: Conversion) -> None:
    from specjax.cli.text import console, print_table

    rows = [("SOURCE", "", "DESTINATION", "", "SHAPE", "BYTES")]
    tensors = (*conversion.tensors, *conversion.kept)
    for tensor in tensors:
        names = [source.name for source in tensor.sources]
        shown = names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "(from the config)"
        kinds = "+".join(dict.fromkeys(source.type for source in tensor.sources))
        shape = " x ".join(map(str, tensor.info.shape))
        rows.append((shown, kinds, tensor.name, tensor.info.type, shape, str(tensor.info.num_bytes)))
    total = f"{len(tensors)} tensors, {conversion.num_bytes / 1e6:.1f} MB"
    verdict = f"{conversion.destination} ({conversion.kind}) would get {total}; nothing is written"
    print_table(console(), rows, (*_changes(conversion), verdict))


def names(paths: list[Path]) -> str:
    """Files in words: one, or the first and the last of the parts of a split one."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1].name}"
