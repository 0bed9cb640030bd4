"""`specjax plan-memory`: what each device would hold of a model, before it is loaded."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specjax.cli.options import DTYPES, KV_TYPES, PACKED, add_command, draft_vocabulary

if TYPE_CHECKING:
    from specjax.analysis.memory import MemoryPlan

DESCRIPTION = """\
Say what each device would hold of a model and of the texts that it writes, whether it fits, and the largest batch and
context that do. Only the header of the file is read, and the devices need not be there.

Parameters and states are exact: they are what loading and decoding allocate. Temporary memory is an estimate, from the
operations of the programs for this batch and context: what one makes is held until its last reader, and elementwise
operations are taken to be fused. On TPUs a third is added for copies that the compiler makes; elsewhere it says nothing
of these. The largest batch and context take it to grow with them.
"""

EPILOG = """\
devices, GiB of one: v4 32, v5e 16, v5p 95, v6e 32; a100-40, a100-80, h100 80, h200 141, b200 180, rtx4090 24,
rtx5090 32; cpu, the memory of this machine. Three hundredths of it are left to drivers. On GPUs JAX takes only three
quarters unless XLA_PYTHON_CLIENT_MEM_FRACTION says more.

exit status: 1 if it does not fit

examples:
  specjax plan-memory model.gguf --device rtx4090
  specjax plan-memory model.gguf --mesh 2x4 --device v5e --batch 16 --context 32768 --kv-type-k bf16 --kv-type-v bf16
  specjax plan-memory model.gguf --device h100 --device-memory 60 --json
"""


def add_parser(subparsers: Any) -> None:
    """Add the command to the program's parser."""
    parser = add_command(subparsers, "plan-memory", "say what fits on which devices", DESCRIPTION, EPILOG, run)
    parser.add_argument(
        "model",
        type=Path,
        nargs="?",
        metavar="FILE|DIR",
        help="GGUF or safetensors folder (default: the bundled model)",
    )
    where = parser.add_argument_group("devices")
    where.add_argument("--mesh", default="1x1", metavar="ROWSxMODEL", help="as in generate (default: 1x1, one device)")
    where.add_argument("--device", default="cpu", metavar="NAME", help="what the devices are, see below (default: cpu)")
    where.add_argument("--device-memory", type=float, metavar="GiB", help="memory of one, if the table is wrong for it")
    work = parser.add_argument_group("texts")
    work.add_argument("--batch", type=int, default=1, metavar="B", help="texts at once (default: 1)")
    work.add_argument("--context", type=int, default=4096, metavar="N", help="tokens of each text (default: 4096)")
    work.add_argument("--kv-type-k", choices=KV_TYPES, help="how keys are kept in KV caches (default: f32)")
    work.add_argument("--kv-type-v", choices=KV_TYPES, help="how values are kept (default: f32)")
    work.add_argument("--rollback", choices=("snapshot", "replay", "auto"), help="of recurrent state (default: auto)")
    work.add_argument("--draft", type=int, metavar="K", help="tokens to draft in a round (default: 3 with a drafter)")
    work.add_argument(
        "--drafter", action="append", metavar="FILE|DIR|ngram|mtp", help="what drafts, as in generate; can be repeated"
    )
    work.add_argument("--draft-vocab", type=draft_vocabulary, metavar="FILE|N", help="as in generate")
    weights = parser.add_argument_group("weights")
    weights.add_argument("--dtype", choices=DTYPES, default="float32", help="of those not packed (default: float32)")
    weights.add_argument("--packed", choices=PACKED, default="a16", help="as in generate (default: a16)")
    weights.add_argument("--kernels", metavar="SPEC", help="which kernels compute, as in generate")
    parser.add_argument("--no-temporaries", action="store_true", help="leave the estimate out, which takes seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object on the standard output")


def run(args: argparse.Namespace) -> int:
    """Returns the exit status: 1 if it does not fit."""
    from specjax.analysis.memory import plan_memory
    from specjax.runtime.notices import announced

    names = ("draft", "rollback", "kv_type_k", "kv_type_v")
    with announced("looking at the programs of this model"):
        plan = plan_memory(
            args.model,
            mesh=args.mesh,
            device=args.device,
            device_memory=args.device_memory,
            batch=args.batch,
            context=args.context,
            drafter=args.drafter,
            draft_vocab=args.draft_vocab,
            dtype=args.dtype,
            packed=None if args.packed == "off" else args.packed,
            temporaries=not args.no_temporaries,
            **{name: getattr(args, name) for name in names if getattr(args, name) is not None},
        )
    document = as_document(plan)
    if args.json:
        print(json.dumps(document))
    else:
        _print_report(document)
    return 0 if plan.fits else 1


def as_document(plan: MemoryPlan) -> dict[str, Any]:
    """The plan as plain data, in bytes of each device."""
    return {
        "path": str(plan.path),
        "mesh": "x".join(map(str, plan.mesh)),
        "device": plan.device.name,
        "memory": plan.device.memory,
        "batch": plan.batch,
        "context": plan.slots,
        "parameters": dict(plan.parameters),
        "state": dict(plan.state),
        "temporaries": dict(plan.temporaries),
        "total": plan.total,
        "fits": plan.fits,
        "largest_batch": plan.largest_batch(),
        "largest_context": plan.largest_context(),
    }


def _print_report(document: dict[str, Any]) -> None:
    from specjax.cli.text import console, print_rows

    out = console()
    count = "one device" if document["mesh"] == "1x1" else f"each device of {document['mesh']}"
    texts = f"{document['batch']} text{'s' * (document['batch'] > 1)} of {document['context']} tokens"
    out.print(
        f"{document['path']}: {count} ({document['device']}, {_size(document['memory'])}) with {texts}", markup=False
    )
    for title in ("parameters", "state", "temporaries"):
        if document[title]:
            out.print(f"\n{title}{', estimated; one at a time' if title == 'temporaries' else ''}")
            print_rows(out, ((name, _size(size)) for name, size in document[title].items()), indent=2)
    out.print()
    verdict = "fits" if document["fits"] else "does not fit"
    rows = {
        "together": f"{_size(document['total'])}: {verdict}",
        f"most texts of {document['context']} tokens": str(document["largest_batch"]),
        f"most tokens of {document['batch']}": str(document["largest_context"]),
    }
    print_rows(out, rows.items())


def _size(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.2f} MiB"
