"""The least time of a round on a device, by what it must read and multiply: computed, and compared with measurements.

    python benchmarks/roofline.py model.gguf --device h100 --draft 0 3
    python benchmarks/roofline.py Qwen3.6-27B --type Q4_K Q8_0 BF16 --device h100 h200 --acceptance 0.8
    python benchmarks/roofline.py Qwen3.6-27B --type Q4_K --device h100 --parts
    specjax bench q8.gguf --draft 3 --synthetic-acceptance 0.8,0.8,0.8 --json > bench.json
    python benchmarks/roofline.py q8.gguf --device this --context 64 --measured bench.json

Weights are not read; the header of a file is enough, and of a released model its name. A round is traced, and walked to
see how often it reads each parameter and how much it multiplies with it (round_parts.py). What is counted:

    weights    bytes as they are arranged for the device, each time that they are read. Of experts as many as the rows
               of a pass would reach that choose by lot. Of embedding tables the rows that are taken.
    caches     all --context tokens of each sequence, for every pass over them, and what is written
    recurrent states
               read to verify, read again and written to commit, and the records of verified tokens written and read;
               without drafts read once and written once
    logits     written once and read once, in float32
    operations multiplications and additions of products: with weights, with caches and states, and others. Decoding of
               packed weights is not counted, nor are norms, softmax and the like.

Activations between layers are left out: they stay in the caches of processors. The time of a part is the longer one of
that by memory and that by arithmetic, the least time of a round is the sum. So it has no launches, and no waiting.

--arithmetic says at which published rate products are computed: "bf16" on units for matrices, which is the default;
"int8" there; "f32" beside them. The device "this" is the one that this runs on: its rates of memory and of products of
float32 matrices are measured first, and "f32" is all that is known of it.

--measured takes what `specjax bench --json` has written for the same model, at batch 1, and says which share of the
limit each measured part of a round has reached. Numbers of drafts and types are then those that were measured.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from device_rates import PUBLISHED, Rates
from machine import description, memory_rate
from measured_speeds import Measured
from programs import Outlined
from released_models import RELEASED, opened
from round_parts import Round, round_of

from checkpoints import CheckpointError
from specjax.cli.bench import probabilities
from specjax.cli.options import DTYPES
from specjax.decoding.acceptance import Synthetic
from specjax.decoding.decoder import Decoder
from specjax.runtime.loading import Models, open_models
from specjax.state import KV_TYPES, KVTypes

ARITHMETIC = ("bf16", "int8", "f32")
THIS = "this"
DRAFTS = 3
"""In a round that drafts, unless a number is given or the drafter makes fewer."""


@dataclass(frozen=True)
class Wanted:
    """What is asked for.

    Attributes:
        models: by what they are called in tables.
        drafts: of rounds.
        acceptance: of each draft.
        kv_types, dtype: of caches, and of matrices that are not packed.
        arithmetic: by the name of a device the one of its rates that products have.
        measured: what limits are compared with.
    """

    models: Mapping[str, Models]
    drafts: Sequence[int]
    acceptance: Synthetic
    kv_types: KVTypes
    dtype: str
    arithmetic: Mapping[str, str]
    measured: Measured | None


def rates_of(name: str) -> Rates:
    """Published rates, or those of this device, measured."""
    if name != THIS:
        return PUBLISHED[name]
    size = 2048
    matrix = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    jax.block_until_ready(multiply(matrix, matrix))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(multiply(matrix, matrix))
        times.append(time.perf_counter() - begin)
    return Rates(jax.default_backend(), memory_rate(1 << 30), None, f32=2 * size**3 / min(times))


def arithmetic_of(name: str, given: str | None) -> str:
    """By which of its rates a device computes products.

    Raises:
        ValueError: the one that is given is not known of it.
    """
    known = ["f32"] if name == THIS else [each for each in ARITHMETIC if getattr(PUBLISHED[name], each) is not None]
    if given not in (None, *known):
        raise ValueError(f"--arithmetic: no rate of {given} is known for {name}; take {' or '.join(known)}")
    return given or known[0]


def models_named(name: str, kind: str) -> Models:
    """Of a file, or of a released model with matrices of a type."""
    return opened(RELEASED[name], kind) if name in RELEASED else open_models(None if name == "bundled" else name, None)


def drafts_of(models: Models, given: list[int] | None) -> list[int]:
    """The numbers of drafts that were given, or by default 0 and what the drafter makes of `DRAFTS`.

    Raises:
        ValueError: the model cannot draft so many.
    """
    drafter = models.drafter
    if given is None:
        return [0] if drafter is None else [0, min(DRAFTS, drafter.max_drafts or DRAFTS)]
    for number in given:
        Decoder(models.target, drafter, rule="greedy", max_drafts=number)
    return given


def acceptance_of(given: Synthetic, drafts: int) -> Synthetic:
    """The probabilities of accepting so many drafts; one that is given is that of each.

    Raises:
        ValueError: there are several, but not enough.
    """
    count = len(given.probabilities)
    if 1 < count < drafts:
        raise ValueError(f"--acceptance has {count} probabilities for {drafts} drafts; give one of each draft, or one")
    return Synthetic(given.probabilities * drafts) if count == 1 and drafts else given


def outlined(models: Models, platform: str, drafts: int, kv_types: KVTypes, dtype: str = "bfloat16") -> Outlined:
    """The model by shapes, with as many drafts a round; `dtype` is that of matrices that are not packed."""
    settings: dict[str, Any] = {"kv_types": kv_types, "rule": "greedy", "max_drafts": drafts}
    given = models if drafts else models._replace(drafter=None)
    return Outlined.of(given, platform, dtype=dtype, **settings)


def print_parts(each: Round, rates: Rates, arithmetic: str) -> None:
    """A line for every part of a round."""
    titles = ("MB", "GFLOP", "memory us", "products us", "of round")
    print(f"{'part':<38} " + " ".join(f"{title:>11}" for title in titles))
    whole = each.seconds(rates, arithmetic)
    for part in sorted(each.parts, key=lambda part: (part.drafting, -max(part.seconds(rates, arithmetic)))):
        seconds = part.seconds(rates, arithmetic)
        figures = (part.num_bytes / 1e6, part.operations / 1e9, *(second * 1e6 for second in seconds))
        name = f"drafter: {part.name}" if part.drafting else part.name
        cells = [f"{figure:>11.2f}" for figure in figures]
        print(f"{name:<38} " + " ".join(cells), f"{max(seconds) / whole:>11.1%}")


def line(each: Round, rates: Rates, arithmetic: str, acceptance: Synthetic, batch: int) -> str:
    """What all parts come to."""
    parts = each.parts
    halves = [each.seconds(rates, arithmetic, drafting=drafting) for drafting in (False, True)]
    tau = acceptance.tokens_per_round(each.drafts)
    sums = (sum(part.num_bytes for part in parts) / 1e9, sum(part.operations for part in parts) / 1e9)
    times = (*(half * 1e3 for half in halves), sum(halves) * 1e3)
    cells = [f"{each.drafts:>3} {sums[0]:>9.3f} {sums[1]:>9.1f}", *(f"{value:>9.3f}" for value in times)]
    return " ".join([*cells, f"{tau:>6.2f} {batch * tau / sum(halves):>9.1f}"])


def positive(text: str) -> int:
    """A whole number from 1 on, as an option says it."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def arguments() -> argparse.ArgumentParser:
    """What the command line takes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"FILE.gguf, a folder, 'bundled', or one of {', '.join(RELEASED)}")
    parser.add_argument(
        "--type", nargs="+", default=["Q8_0"], help="of a released model: BF16, Q8_0, Q4_K, Q4_K_M, ..."
    )
    parser.add_argument("--device", nargs="+", choices=[*PUBLISHED, THIS], default=["h100"])
    parser.add_argument("--arithmetic", choices=ARITHMETIC, help="default: bf16, and f32 of the device 'this'")
    parser.add_argument(
        "--draft", type=int, nargs="+", metavar="K", help=f"default: 0, and {DRAFTS} if there is a drafter"
    )
    parser.add_argument("--batch", type=positive, default=1)
    parser.add_argument("--context", type=positive, default=4096, help="tokens in the caches of each sequence")
    parser.add_argument("--kv-type", choices=KV_TYPES, help="of KV caches (default: bf16)")
    parser.add_argument("--dtype", choices=DTYPES, help="of matrices that are not packed (default: bfloat16)")
    parser.add_argument(
        "--acceptance", type=probabilities, default="0.8", help="of each draft: P, or P1,P2,... (default: 0.8)"
    )
    parser.add_argument("--parts", action="store_true", help="also print every part of a round")
    parser.add_argument("--measured", type=Path, metavar="FILE.json", help="what `specjax bench --json` wrote")
    return parser


def wanted(args: argparse.Namespace) -> Wanted:
    """What the command line asks for, before anything is traced.

    Raises:
        CheckpointError: there is no such model or type.
        ValueError: settings that the model cannot have, that contradict each other, or that were not measured.
    """
    released = args.model in RELEASED
    models = {kind: models_named(args.model, kind) for kind in (args.type if released else ["as it is"])}
    first = next(iter(models.values()))
    measured = None if args.measured is None else Measured.read(args.measured)
    drafts = drafts_of(first, args.draft if measured is None else args.draft or measured.drafts)
    kv_types, dtype = args.kv_type and KVTypes(args.kv_type, args.kv_type), args.dtype
    if measured is None:
        kv_types, dtype = kv_types or KVTypes("bf16", "bf16"), dtype or "bfloat16"
    else:
        measured.check(args.model if released else first.opened.path.name, args.batch, drafts)
        kv_types, dtype = measured.kv_types(kv_types), measured.dtype(dtype)
    return Wanted(
        models={f"{args.model} {kind}" if released else Path(args.model).name: each for kind, each in models.items()},
        drafts=drafts,
        acceptance=acceptance_of(args.acceptance, max(drafts)),
        kv_types=kv_types,
        dtype=dtype,
        arithmetic={name: arithmetic_of(name, args.arithmetic) for name in args.device},
        measured=measured,
    )


def print_tables(asked: Wanted, batch: int, context: int, *, with_parts: bool) -> None:
    """A table for each device, with a line for every model and number of drafts."""
    settings = f"{asked.kv_types} caches, {asked.dtype}, greedy"
    print(f"{description()}: computed; {batch} x {context} tokens, {settings}")
    titles = (f"{'K':>3}", *(f"{title:>9}" for title in ("GB", "GFLOP", "verify ms", "draft ms", "round ms")))
    known: dict[tuple[str, str, int], Round] = {}
    for name, arithmetic in asked.arithmetic.items():
        rates = rates_of(name)
        speed = getattr(rates, arithmetic)
        print(f"\n{name}: {rates.memory / 1e9:.1f} GB/s, {speed / 1e12:.2f} TFLOP/s of {arithmetic}")
        print(f"{'model':<24}", *titles, f"{'tokens':>6} {'tok/s':>9}")
        for label, models in asked.models.items():
            for drafts in asked.drafts:
                if (key := (rates.platform, label, drafts)) not in known:
                    print(f"tracing {label}, K = {drafts} ...", file=sys.stderr, flush=True)
                    model = outlined(models, rates.platform, drafts, asked.kv_types, asked.dtype)
                    known[key] = round_of(model, batch, context)
                each = known[key]
                print(f"{label:<24}", line(each, rates, arithmetic, asked.acceptance, batch), flush=True)
                if with_parts:
                    print_parts(each, rates, arithmetic)
                if asked.measured is not None:
                    print(*asked.measured.lines(each, rates, arithmetic), sep="\n")


def main() -> None:
    """Print the tables, or one line that says what is wrong with the command line."""
    parser = arguments()
    args = parser.parse_args()
    try:
        asked = wanted(args)
    except (CheckpointError, ValueError) as error:
        parser.error(str(error))
    print_tables(asked, args.batch, args.context, with_parts=args.parts)


if __name__ == "__main__":
    main()
