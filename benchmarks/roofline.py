"""The least time of a round on a device, by what it must read and multiply: computed, and compared with measurements.

    python benchmarks/roofline.py model.gguf --device h100 --draft 0 3
    python benchmarks/roofline.py Qwen3.6-27B --type Q4_K Q8_0 BF16 --device h100 h200 --acceptance 0.8
    python benchmarks/roofline.py Qwen3.6-27B --type Q4_K --device h100 --parts
    specjax bench q8.gguf --draft 3 --synthetic-acceptance 0.8,0.8,0.8 --json > bench.json
    python benchmarks/roofline.py q8.gguf --device this --draft 0 3 --kv-type f32 --context 64 --measured bench.json

Weights are not read; the header of a file is enough, and of a released model its name. A round is traced, and walked to
see how often it reads each parameter and how much it multiplies with it (round_uses.py). What is counted:

    weights    bytes as they are arranged for the device, each time that they are read. Of experts as many as rows that
               choose by lot would reach. Of embedding tables the rows that are taken.
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from device_rates import PUBLISHED, Rates
from machine import description, read_rate
from programs import Outlined
from released_models import RELEASED, opened
from round_uses import Uses, Walk

from pallas_kernels import using
from pallas_kernels.matmul import QTensor
from specjax.analysis.memory import bytes_on_device
from specjax.decoding.acceptance import Synthetic
from specjax.decoding.round import decode_round
from specjax.runtime.loading import Models, open_models
from specjax.state import KVTypes

PRODUCTS = "matmul.packed=reference,matmul.float=reference,cache_attention=reference"
"""Forms in which each product is one operation and its factors can be followed."""
FLOAT = 4
THIS = "this"


@dataclass(frozen=True)
class Part:
    """A part of a round.

    Attributes:
        drafting: whether it belongs to the drafter.
        num_bytes: read and written.
        operations: multiplications and additions.
    """

    name: str
    drafting: bool
    num_bytes: float = 0.0
    operations: float = 0.0

    def seconds(self, rates: Rates, arithmetic: str) -> tuple[float, float]:
        """By memory, and by arithmetic."""
        return self.num_bytes / rates.memory, self.operations / getattr(rates, arithmetic)


@dataclass(frozen=True)
class Round:
    """A round of a model: its parts, and how many drafts it has."""

    drafts: int
    parts: Sequence[Part]

    def seconds(self, rates: Rates, arithmetic: str, *, drafting: bool | None = None) -> float:
        """The least time, of all or of one half."""
        parts = (each for each in self.parts if drafting in (None, each.drafting))
        return sum(max(each.seconds(rates, arithmetic)) for each in parts)


def round_of(model: Outlined, batch: int, context: int) -> Round:
    """The parts of a round of so many sequences, each with so many tokens in its caches."""
    decoder, state = model.decoder, model.state(batch, context)
    drafts, rows = decoder.max_drafts, decoder.rows
    with using(PRODUCTS, platform="gpu"):  # where no native kernels are
        traced = jax.jit(partial(decode_round, decoder)).trace(model.params, state)
        window = jax.eval_shape(lambda params, state: _window(decoder, params, state), model.params, state)
    parameters = list(_leaves(model.params))
    states = [(name, leaf) for name, leaf in _parts_of(state.sequences)]
    rest = len(jax.tree.leaves(state)) - len(states)
    walk = Walk(turns=max(drafts - 1, 1))
    names = [("weights", index) for index in range(len(parameters))]
    # The sequences come first in a state, see `DecodeState`.
    names += [("state", index) for index in range(len(states))] + [None] * rest
    walk.run(traced.jaxpr.jaxpr, names)

    found: dict[tuple[str, bool], Part] = {}

    def add(name: str, drafting: bool, num_bytes: float, operations: float = 0.0) -> None:
        old = found.get((name, drafting), Part(name, drafting))
        new = replace(old, num_bytes=old.num_bytes + num_bytes, operations=old.operations + operations)
        found[name, drafting] = new

    for index, (path, leaf, stacked) in enumerate(parameters):
        uses = walk.of(("weights", index))
        own, of_drafter = _shares(path, uses, rows)
        if stacked:
            own.taken = _reached(leaf.shape[0], uses.taken * leaf.shape[0], batch * rows)
        for each, drafting in ((own, False), (of_drafter, True)):
            size = bytes_on_device(leaf)
            if each.taken:
                add("experts" if stacked else "embedding rows", drafting, size * each.taken)
            if each.reads or each.operations:
                add("experts" if stacked else _kind(path), drafting, size * each.reads, each.operations)
    for index, (name, leaf) in enumerate(states):
        uses, size = walk.of(("state", index)), bytes_on_device(leaf)
        drafting = name.startswith("drafter")
        if name == "tokens and settings":
            continue
        if "recurrent" in name:
            add(name, drafting, size * (3 if drafts else 2), uses.operations)
        else:
            add(name, drafting, size * (uses.reads + uses.taken + uses.put), uses.operations)
    records = bytes_on_device(window.layers) - bytes_on_device(state.sequences.layers)
    if drafts and records > 0:
        add("records of recurrent states", False, 2 * records)
    vocabulary = batch * decoder.target.vocab_size * FLOAT
    add("logits", False, 2 * rows * vocabulary)
    add("other products", False, 0.0, walk.of(None).operations)
    return Round(drafts, [part for part in found.values() if part.num_bytes or part.operations])


def _window(decoder: Any, params: Any, state: Any) -> Any:
    tokens = jnp.zeros((len(state.pending), decoder.rows), jnp.int32)
    n_valid = jnp.full_like(state.pending, decoder.rows)
    return decoder.target.verify(params, tokens, n_valid, state.sequences, request=decoder.request)[1]


def _leaves(params: Any) -> Iterator[tuple[str, Any, bool]]:
    """The arrays of all parameters in order: path of the parameter, array, whether it is a stack of matrices."""
    for keys, parameter in jax.tree.leaves_with_path(params, is_leaf=lambda leaf: isinstance(leaf, QTensor)):
        path = ".".join(str(key.key) for key in keys)
        stacked = "experts" in path and len(parameter.shape) == 3
        for leaf in jax.tree.leaves(parameter):
            yield path, leaf, stacked


def _parts_of(sequences: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a state in order, by what they belong to."""
    for layer in sequences.layers:
        kind = "recurrent states" if layer.limit is None and not layer.rings else "caches"
        yield from ((kind, leaf) for leaf in jax.tree.leaves(layer))
    yield from (("drafter's state", leaf) for leaf in jax.tree.leaves(sequences.drafter))
    yield "tokens and settings", sequences.length


def _shares(path: str, uses: Uses, rows: int) -> tuple[Uses, Uses]:
    """Of what is done with a parameter the target's and the drafter's.

    The target multiplies each of its own once, with all rows. What goes beyond is the drafter's, which has a row each
    time.
    """
    if not path.startswith("target."):
        return Uses(), uses
    if uses.products <= 1:
        return uses, Uses()
    own = uses.operations * rows / (rows + uses.products - 1)
    return replace(uses, products=1, operations=own), Uses(uses.products - 1, operations=uses.operations - own)


def _reached(experts: int, chosen: float, rows: int) -> float:
    """The share of experts that rows reach, each of which chooses by lot as many as `chosen` says of all together."""
    return 1 - (1 - chosen / rows / experts) ** rows


def _kind(path: str) -> str:
    """What parameters of this path are called in the table."""
    names = path.split(".")
    if "lm_head" in names or "embed" in names:
        return "output head"
    if any("norm" in name for name in names):
        return "norms"
    inside = names[2:] if names[1].startswith("layers_") else names[1:]
    return next(name for name in inside if name not in ("layer", "block"))


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
