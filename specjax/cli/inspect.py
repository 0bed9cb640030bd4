"""`specjax inspect`: what a model file contains."""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.options import add_command, draft_vocabulary

if TYPE_CHECKING:
    from checkpoints import Description

DESCRIPTION = """\
Show what a checkpoint contains: hyper-parameters, tensors by type, whether the multi-token-prediction (MTP) head is
there, and everything that would keep it from loading. No weights are read. The exit status is 1 if it would not load.
"""

EPILOG = """\
examples:
  specjax inspect model.gguf
  specjax inspect Qwen3.5-4B/ --tensors
  specjax inspect model.gguf --draft-vocab tokens.json
  specjax inspect model.gguf --json | python -m json.tool
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "inspect", "show what a model file contains", DESCRIPTION, EPILOG, run)
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        metavar="FILE|DIR",
        help="GGUF or safetensors folder (default: the bundled model)",
    )
    parser.add_argument(
        "--draft-vocab",
        type=draft_vocabulary,
        metavar="FILE|N",
        help="whether the list fits the model's vocabulary, and how many tokens it has",
    )
    parser.add_argument("--tensors", action="store_true", help="list every tensor, with the parameters made of it")
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output")


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if the checkpoint would not load."""
    import checkpoints
    from specjax.models.registry import FAMILIES
    from specjax.runtime.draft_vocabulary import draft_tokens
    from specjax.runtime.loading import bundled_model

    path = args.model or bundled_model()
    description = checkpoints.describe(path, FAMILIES)
    document = as_document(description, tensors=args.tensors)
    if args.draft_vocab is not None:
        tokenizer = checkpoints.open_checkpoint(path, FAMILIES).tokenizer(required=False)
        document["draft_vocabulary"] = len(draft_tokens(args.draft_vocab, tokenizer, description.config.vocab_size))
    if args.json:
        print(json.dumps(document))
    else:
        _print_report(document)
    return 1 if description.problems else 0


def as_document(description: Description, *, tensors: bool) -> dict[str, Any]:
    """The contents as plain data."""
    by_type: dict[str, dict[str, int]] = {}
    counts = Counter(tensor.type for tensor in description.tensors)
    for kind, count in counts.most_common():
        size = sum(tensor.num_bytes for tensor in description.tensors if tensor.type == kind)
        by_type[kind] = {"tensors": count, "bytes": size}
    document = {
        "path": str(description.path),
        "format": description.format,
        "architecture": description.config.architecture,
        "role": description.role,
        "mtp": description.has_mtp,
        "parameters": sum(math.prod(tensor.shape) for tensor in description.tensors),
        "num_tensors": len(description.tensors),
        "bytes": description.num_bytes,
        "tokenizer_size": description.vocab_size,
        "config": asdict(description.config),
        "types": by_type,
        "problems": description.problems,
    }
    if tensors:
        document["tensors"] = [
            asdict(tensor) | {"parameters": list(description.parameters.get(tensor.name, ()))}
            for tensor in description.tensors
        ]
    return document


def _print_report(document: dict[str, Any]) -> None:
    from specjax.cli.text import console, print_rows

    out = console()
    size = document["tokenizer_size"]
    rows = {
        "file": f"{document['path']} ({document['format']}, {document['bytes'] / 1e6:.1f} MB of tensors)",
        "architecture": document["architecture"],
        "parameters": f"{document['parameters'] / 1e6:.2f} M in {document['num_tensors']} tensors",
        **_drafting(document),
        **_trimming(document),
        "tokenizer": f"{size} tokens" if size else "none that can be used: prompts must be token ids",
    }
    print_rows(out, rows.items())
    out.print("\nconfig")
    print_rows(out, ((name, _short(value)) for name, value in document["config"].items()), indent=2)
    out.print("\ntensor types")
    types = document["types"].items()
    print_rows(out, ((kind, f"{row['tensors']} tensors, {row['bytes'] / 1e6:.2f} MB") for kind, row in types), indent=2)
    if "tensors" in document:
        out.print("\ntensors")
        width = max((len(_parameters(tensor)) for tensor in document["tensors"]), default=0)
        print_rows(out, (_tensor_row(tensor, width) for tensor in document["tensors"]), indent=2)
    if document["problems"]:
        out.print(f"\nthis checkpoint would not load:\n{document['problems']}", markup=False)


def _drafting(document: dict[str, Any]) -> dict[str, str]:
    """A row about what drafts."""
    if document["role"] != "target":
        return {"role": f"{document['role']}: it drafts for a target, which has a file of its own"}
    return {"MTP head": "yes" if document["mtp"] else "no: plain decoding, unless a drafter is given"}


def _trimming(document: dict[str, Any]) -> dict[str, str]:
    """A row about the draft vocabulary, if one was given."""
    if "draft_vocabulary" not in document:
        return {}
    return {"draft vocabulary": f"{document['draft_vocabulary']} of {document['config']['vocab_size']} tokens"}


def _tensor_row(tensor: dict[str, Any], width: int) -> tuple[str, str]:
    """Name, paths of the parameters that it becomes, type, shape and size."""
    shape = " x ".join(map(str, tensor["shape"]))
    stored = f"{tensor['type']:<5} {shape:<18} {tensor['num_bytes']} bytes"
    return tensor["name"], f"{_parameters(tensor):<{width}}  {stored}"


def _parameters(tensor: dict[str, Any]) -> str:
    return ", ".join(tensor["parameters"]) or "(not used)"


def _short(value: Any) -> str:
    """Runs of equal entries are counted, so that 64 layer types take one line."""
    if not isinstance(value, tuple) or not value or not all(isinstance(entry, str) for entry in value):
        return str(value)
    return f"{len(value)}: " + ", ".join(f"{count} {entry}" for entry, count in Counter(value).items())
