"""What devices of a mesh send each other in a round, against what each of them reads: computed, not measured.

    python benchmarks/mesh_traffic.py
    python benchmarks/mesh_traffic.py --mesh 1x4 --device h100 --type BF16 --batch 8 --latency 10

Collectives are counted in the program of a round as it is traced for the mesh: their number, and the bytes of what they
add up or gather. Loops count as often as they turn, and of branches the one that sends most. A ring of n devices sends
each byte that is added up 2 (n - 1) / n times, and each byte that is gathered (n - 1) / n times. Bytes that are read:
the weights of the target once, those of its head and of the output head once for each draft, and the state.

Rates are published ones, see `device_rates.py`.

Columns: collectives of a round; kilobytes that a device sends; megabytes that it reads; microseconds for both; the
speed-up over one such device with memory enough, as a share of the number of devices: by the rates alone, and with
--latency microseconds for each collective. Nobody publishes that number: measure it, and give it.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from device_rates import PUBLISHED, Rates
from jax.extend import core
from machine import description
from programs import Outlined
from released_models import RELEASED, opened

from pallas_kernels import using
from pallas_kernels.override import XLA
from specjax.analysis.memory import bytes_on_device
from specjax.decoding.loop import decode_chunk
from specjax.mesh.plan import AnyMesh, sizes_of, without_devices
from specjax.state import KVTypes

DRAFTS = 3
ADDED_UP = ("psum", "pmax", "pmin")
GATHERED = ("all_gather",)


DEVICES = {name: rates for name, rates in PUBLISHED.items() if rates.link}


@dataclass(frozen=True)
class Traffic:
    """Collectives of a program: how many, and the bytes that one device sends."""

    count: int = 0
    sent: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.count + other.count, self.sent + other.sent)

    def __mul__(self, times: int) -> Traffic:
        return Traffic(self.count * times, self.sent * times)


def traffic_of(jaxpr: core.Jaxpr, sizes: dict[str, int]) -> Traffic:
    """The collectives of a program on the axes of a mesh; a `while` counts as one turn."""
    total = Traffic()
    for equation in jaxpr.eqns:
        name, inner = equation.primitive.name, [traffic_of(each, sizes) for each in programs_in(equation)]
        if name in (*ADDED_UP, *GATHERED):
            total += collective(equation, sizes)
        elif name == "cond":
            total += max(inner, key=lambda each: each.sent)
        else:
            times = equation.params["length"] if name == "scan" else 1
            for each in inner:
                total += each * times
    return total


def collective(equation: Any, sizes: dict[str, int]) -> Traffic:
    """What a device sends in one collective."""
    axes = equation.params["axes"] if "axes" in equation.params else equation.params["axis_name"]
    devices = int(np.prod([sizes[axis] for axis in (axes if isinstance(axes, tuple) else (axes,))]))
    if devices == 1:
        return Traffic()
    gathers = equation.primitive.name in GATHERED
    arrays = equation.outvars if gathers else equation.invars
    size = sum(int(np.prod(each.aval.shape)) * each.aval.dtype.itemsize for each in arrays)
    return Traffic(1, size * (devices - 1) / devices * (1 if gathers else 2))


def programs_in(equation: Any) -> Iterator[core.Jaxpr]:
    """The programs of loops, branches and calls; kernels have none that sends."""
    if equation.primitive.name == "pallas_call":
        return
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, core.ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, core.Jaxpr):
                yield each


def of_round(model: Outlined, batch: int, slots: int) -> Traffic:
    """The collectives of a round. A chunk of one round has some more of its own, at its beginning and end."""
    state = model.state(batch, slots)
    with using(model.kernels, platform=model.platform):
        traced = decode_chunk.trace(model.decoder, model.params, state, 1, np.int32(1), np.int32(1))
    sizes = dict(model.mesh.shape) if model.mesh is not None else {"rows": 1, "model": 1}
    return traffic_of(traced.jaxpr.jaxpr, sizes)


def bytes_read(model: Outlined, batch: int, slots: int) -> int:
    """Bytes that a device reads in a round."""
    target, others = model.params["target"], {name: own for name, own in model.params.items() if name != "target"}
    head = target.get("lm_head", target["embed"])
    once = bytes_on_device(target) - (bytes_on_device(target["embed"]) if "lm_head" in target else 0)
    drafting = model.decoder.max_drafts * (bytes_on_device(others) + bytes_on_device(head))
    return once + drafting + bytes_on_device(model.state(batch, slots))


def main() -> None:
    """Print a table for each device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", nargs="+", default=["1x2", "1x4", "1x8", "2x4"], metavar="ROWSxMODEL")
    parser.add_argument("--device", nargs="+", choices=DEVICES, default=[*DEVICES])
    parser.add_argument("--model", choices=RELEASED, default="Qwen3.6-27B")
    parser.add_argument("--type", default="Q8_0", help="of matrices: BF16, Q8_0, Q4_K_M, ... (default: Q8_0)")
    parser.add_argument("--batch", type=int, default=8, help="sequences (default: 8)")
    parser.add_argument("--context", type=int, default=4096, help="tokens of each (default: 4096)")
    parser.add_argument("--latency", type=float, default=5.0, help="microseconds of a collective (default: 5)")
    args = parser.parse_args()
    print(f"{description()}: computed for {args.model} {args.type}, {args.batch} sequences of {args.context} tokens,")
    print(f"bf16 caches, greedy rounds of {DRAFTS} drafts")
    settings: dict[str, Any] = {"kv_types": KVTypes("bf16", "bf16"), "max_drafts": DRAFTS, "rule": "greedy"}

    def outlined(platform: str, mesh: AnyMesh | None, **more: Any) -> Outlined:
        models = opened(RELEASED[args.model], args.type, mesh)
        return Outlined.of(models, platform, mesh=mesh, **settings, **more)

    def read_by(rates: Rates, mesh: AnyMesh | None) -> float:
        """Bytes that a device reads in a round."""
        return bytes_read(outlined(rates.platform, mesh), args.batch, args.context)

    found: dict[str, Traffic] = {}
    for text in args.mesh:
        print(f"counting on {text} ...", file=sys.stderr, flush=True)
        jax.clear_caches()
        mesh = without_devices(sizes_of(text))
        # Kernels do not send: the forms of XLA are traced faster.
        found[text] = of_round(outlined("tpu", mesh, kernels=XLA), args.batch, args.context)
    for name in args.device:
        rates = DEVICES[name]
        whole = read_by(rates, None) / rates.memory
        print(f"\n{name}: {rates.memory / 1e9:.0f} GB/s of memory, {rates.link / 1e9:.0f} GB/s sent")
        latency = f"with {args.latency:g} us"
        titles = ("mesh", "collectives", "sent kB", "read MB", "send us", "read us", "of ideal", latency)
        print(" ".join(f"{title:>11}" for title in titles))
        for text, traffic in found.items():
            sizes = sizes_of(text)
            read = read_by(rates, without_devices(sizes))
            reading, sending = read / rates.memory, traffic.sent / rates.link
            waits = (0, traffic.count * args.latency / 1e6)
            shares = [whole / math.prod(sizes) / (reading + sending + wait) for wait in waits]
            cells = (text, traffic.count, f"{traffic.sent / 1e3:.1f}", f"{read / 1e6:.0f}")
            times = (f"{sending * 1e6:.0f}", f"{reading * 1e6:.0f}", *(f"{share:.0%}" for share in shares))
            print(" ".join(f"{cell:>11}" for cell in (*cells, *times)), flush=True)


if __name__ == "__main__":
    main()
