"""The least time of a round on a device, by what it must read and multiply: computed, and compared with measurements.

    python benchmarks/roofline.py model.gguf --device h100 --draft 0 3
    python benchmarks/roofline.py Qwen3.6-27B --type Q4_K Q8_0 BF16 --device h100 h200 --acceptance 0.8
    python benchmarks/roofline.py Qwen3.6-27B --type Q4_K --device h100 --parts
    specjax bench q8.gguf --draft 3 --synthetic-acceptance 0.8,0.8,0.8 --json > bench.json
    python benchmarks/roofline.py q8.gguf --device this --draft 0 3 --kv-type f32 --context 64 --measured bench.json

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
"int8" there; "f32" beside them. The device "this" is the one that this runs on: its rates of reading and of products of
float32 matrices are measured first. --measured takes what `specjax bench --json` has written for the same model and
settings, and says which share of the limit each measured part of a round has reached.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from device_rates import PUBLISHED, Rates
from machine import description, read_rate
from programs import Outlined
from released_models import RELEASED, opened
from round_parts import Round, round_of

from specjax.decoding.acceptance import Synthetic
from specjax.runtime.loading import Models, open_models
from specjax.state import KVTypes

PRODUCTS = "matmul.packed=reference,matmul.float=reference,cache_attention=reference"
"""Forms in which each product is one operation and its factors can be followed."""
FLOAT = 4
THIS = "this"


def rates_of(name: str) -> Rates:
    """Published rates, or those of this device, measured."""
    if name != THIS:
        return PUBLISHED[name]
    pieces = jnp.split(jnp.ones((1 << 16, 1 << 10), jnp.float32), max(8, os.cpu_count() or 1))
    memory = read_rate(pieces)
    size = 2048
    matrix = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(jnp.matmul)
    jax.block_until_ready(multiply(matrix, matrix))
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        jax.block_until_ready(multiply(matrix, matrix))
        times.append(time.perf_counter() - begin)
    products = 2 * size**3 / min(times)
    return Rates(jax.default_backend(), memory, products, f32=products)


def models_named(name: str, kind: str) -> Models:
    """Of a file, or of a released model with matrices of a type."""
    return opened(RELEASED[name], kind) if name in RELEASED else open_models(None if name == "bundled" else name, None)


def outlined(models: Models, platform: str, drafts: int, kv_type: str) -> Outlined:
    """The model by shapes, with as many drafts a round."""
    settings: dict[str, Any] = {"kv_types": KVTypes(kv_type, kv_type), "rule": "greedy", "max_drafts": drafts}
    given = models if drafts else models._replace(drafter=None)
    return Outlined.of(given, platform, **settings)


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


def line(each: Round, rates: Rates, arithmetic: str, acceptance: Sequence[float], batch: int) -> str:
    """What all parts come to."""
    parts = each.parts
    halves = [each.seconds(rates, arithmetic, drafting=drafting) for drafting in (False, True)]
    tau = Synthetic(tuple(acceptance)).tokens_per_round(each.drafts) if each.drafts else 1.0
    sums = (sum(part.num_bytes for part in parts) / 1e9, sum(part.operations for part in parts) / 1e9)
    times = (*(half * 1e3 for half in halves), sum(halves) * 1e3)
    cells = [f"{each.drafts:>3} {sums[0]:>9.3f} {sums[1]:>9.1f}", *(f"{value:>9.3f}" for value in times)]
    return " ".join([*cells, f"{tau:>6.2f} {batch * tau / sum(halves):>9.1f}"])


def print_measured(document: dict[str, Any], each: Round, rates: Rates, arithmetic: str) -> None:
    """The share of the limit that measured parts of a round with as many drafts have reached."""
    limits = {
        "round": each.seconds(rates, arithmetic),
        "verify_per_round": each.seconds(rates, arithmetic, drafting=False),
        "draft_per_round": each.seconds(rates, arithmetic, drafting=True),
    }
    for speed in document["speeds"]:
        if speed["draft"] != each.drafts:
            continue
        for name, limit in limits.items():
            if speed[name]:
                label = name.removesuffix("_per_round")
                print(f"  measured {label:<7} {speed[name] * 1e3:>9.3f} ms, {limit / speed[name]:>5.0%} of the limit")


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"FILE.gguf, a folder, 'bundled', or one of {', '.join(RELEASED)}")
    parser.add_argument(
        "--type", nargs="+", default=["Q8_0"], help="of a released model: BF16, Q8_0, Q4_K, Q4_K_M, ..."
    )
    parser.add_argument("--device", nargs="+", choices=[*PUBLISHED, THIS], default=["h100"])
    parser.add_argument("--arithmetic", choices=("bf16", "int8", "f32"), default="bf16")
    parser.add_argument("--draft", type=int, nargs="+", default=[0, 3], metavar="K")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int, default=4096, help="tokens in the caches of each sequence")
    parser.add_argument("--kv-type", default="bf16", help="of KV caches (default: bf16)")
    parser.add_argument("--acceptance", default="0.8", help="of each draft: P, or P1,P2,... (default: 0.8)")
    parser.add_argument("--parts", action="store_true", help="also print every part of a round")
    parser.add_argument("--measured", type=Path, metavar="FILE.json", help="what `specjax bench --json` wrote")
    args = parser.parse_args()
    probabilities = [float(text) for text in args.acceptance.split(",")]
    acceptance = probabilities if len(probabilities) > 1 else probabilities * max(args.draft)
    types = args.type if args.model in RELEASED else ["as it is"]
    print(f"{description()}: computed; {args.batch} x {args.context} tokens, {args.kv_type} caches, greedy")
    titles = (f"{'K':>3}", *(f"{title:>9}" for title in ("GB", "GFLOP", "verify ms", "draft ms", "round ms")))
    known: dict[tuple[str, str, int], Round] = {}
    for name in args.device:
        rates = rates_of(name)
        speed = getattr(rates, args.arithmetic)
        if speed is None:
            raise SystemExit(f"no rate of {args.arithmetic} is published for {name}; take bf16")
        print(f"\n{name}: {rates.memory / 1e9:.1f} GB/s, {speed / 1e12:.2f} TFLOP/s of {args.arithmetic}")
        print(f"{'model':<24}", *titles, f"{'tokens':>6} {'tok/s':>9}")
        for kind in types:
            for drafts in args.draft:
                if (key := (rates.platform, kind, drafts)) not in known:
                    print(f"tracing {kind}, K = {drafts} ...", file=sys.stderr, flush=True)
                    model = outlined(models_named(args.model, kind), rates.platform, drafts, args.kv_type)
                    known[key] = round_of(model, args.batch, args.context)
                each = known[key]
                label = Path(args.model).name if args.model not in RELEASED else f"{args.model} {kind}"
                print(f"{label:<24}", line(each, rates, args.arithmetic, acceptance, args.batch), flush=True)
                if args.parts:
                    print_parts(each, rates, args.arithmetic)
                if args.measured is not None:
                    print_measured(json.loads(args.measured.read_text()), each, rates, args.arithmetic)


if __name__ == "__main__":
    main()
