"""How many kernels a GPU launches in a round, counted in the program that XLA makes for an H100: without a GPU.

    python benchmarks/gpu_launches.py bundled
    python benchmarks/gpu_launches.py Qwen3.6-27B --layers 4 8 --type Q4_K
    python benchmarks/gpu_launches.py Qwen3.6-27B --layers 4 --kernels xla --by-scope

It needs jax 0.11 with the plugin for CUDA, and NVIDIA's assembler (pip install 'jax[cuda13-local]>=0.11,<0.12'
nvidia-cuda-nvcc). No GPU and no driver has to be there. Beside a GPU XLA tries forms of products and takes the fastest;
here nothing can be tried. So a product may take one kernel more or fewer on a device.

Counted is every operation of the compiled program that becomes a kernel, a copy or a call: fusions, copies, sorts,
custom calls. Of loops the body counts as often as it turns, the loop over drafts K - 1 times; of branches the one with
most. What makes no kernel, such as a bitcast, is not counted. A call of a library or of a Pallas kernel counts as one.
Each turn of a loop and each branch also waits for a number that the host must see: these are "waits", unless XLA has
put the loop into a CUDA graph.

--by-scope lists where launches come from: the parts of the program by the names of its functions and modules.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
from programs import Outlined, gpu_device
from released_models import RELEASED, opened, shape_of_27b

from specjax.runtime.loading import Models, open_models
from specjax.state import KVTypes

NOTHING = frozenset(
    {
        "after-all",
        "bitcast",
        "constant",
        "copy-done",
        "get-tuple-element",
        "opt-barrier",
        "parameter",
        "partition-id",
        "replica-id",
        "tuple",
    }
)
"""Operations without a kernel."""
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%\S+ = (?:\(.*?\)|\S+) ([a-z][\w-]*)\(")
COMPUTATION = re.compile(r"^(ENTRY )?%(\S+) \(")


@dataclass(frozen=True)
class Instruction:
    """One line of a compiled program."""

    opcode: str
    text: str

    def named(self, attribute: str) -> list[str]:
        """Computations that an attribute such as "body" names."""
        found = re.search(rf"\b{attribute}=(?:\{{([^}}]*)\}}|(%[\w.-]+))", self.text)
        return re.findall(r"%([\w.-]+)", found[0]) if found else []

    @property
    def scope(self) -> str:
        """Where in the source it comes from, by names of functions and modules."""
        found = re.search(r'op_name="([^"]*)"', self.text)
        return found[1] if found else ""


@dataclass
class Launches:
    """What a program launches.

    Attributes:
        kernels: how many, by opcode; custom calls by their targets.
        scopes: how many, by where they come from.
        waits: times that the host must see a number before it can go on.
    """

    kernels: Counter[str] = field(default_factory=Counter)
    scopes: Counter[str] = field(default_factory=Counter)
    waits: int = 0

    def add(self, other: Launches, times: int = 1) -> None:
        """Take in what another program launches, so many times."""
        for mine, theirs in ((self.kernels, other.kernels), (self.scopes, other.scopes)):
            for name, count in theirs.items():
                mine[name] += count * times
        self.waits += other.waits * times

    @property
    def total(self) -> int:
        """All launches."""
        return sum(self.kernels.values())


class Program:
    """A compiled program as text, read."""

    def __init__(self, text: str, turns: int) -> None:
        """`turns` are those of loops whose number the compiler does not know."""
        self.turns = turns
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        for line in text.splitlines():
            if (head := COMPUTATION.match(line)) and line.endswith("{"):
                name = head[2]
                self.computations[name] = []
                self.entry = name if head[1] else self.entry
            elif found := INSTRUCTION.match(line):
                self.computations[name].append(Instruction(found[1], line))

    def launches(self, computation: str) -> Launches:
        """What a computation launches."""
        sums = Launches()
        for each in self.computations[computation]:
            if each.opcode == "while":
                turns = self._turns(each)
                for inner in (*each.named("body"), *each.named("condition")):
                    sums.add(self.launches(inner), turns)
                sums.waits += turns
            elif each.opcode == "conditional":
                branches = [*each.named("branch_computations"), *each.named("true_computation")]
                branches += each.named("false_computation")
                sums.add(max(map(self.launches, branches), key=lambda branch: branch.total))
                sums.waits += 1
            elif each.opcode == "call":
                for inner in each.named("to_apply"):
                    sums.add(self.launches(inner))
            elif each.opcode not in NOTHING:
                target = re.search(r'custom_call_target="([^"]*)"', each.text)
                sums.kernels[each.opcode if target is None else target[1]] += 1
                sums.scopes[each.scope] += 1
        return sums

    def round(self) -> Launches:
        """What a turn of the loop over rounds launches: the largest loop of the program."""
        loops = [each for each in self._all(self.entry) if each.opcode == "while"]
        sums: list[Launches] = []
        for loop in loops:
            sums.append(Launches())
            for inner in (*loop.named("body"), *loop.named("condition")):
                sums[-1].add(self.launches(inner))
            sums[-1].waits += 1
        return max(sums, key=lambda each: each.total)

    def _all(self, computation: str) -> Iterator[Instruction]:
        """The instructions of a computation, and of those that it calls."""
        for each in self.computations[computation]:
            yield each
            for inner in each.named("to_apply") if each.opcode == "call" else ():
                yield from self._all(inner)

    def _turns(self, loop: Instruction) -> int:
        known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.text)
        return int(known[1]) if known else self.turns


def short(scope: str) -> str:
    """A scope without what all have and without numbers of layers."""
    names = [name for name in scope.split("/") if not re.match(r"jit\(|while|body|closed_call|cond|branch_", name)]
    return re.sub(r"_\d+\b", "", "/".join(names[:-1])) or "(others)"


def models_of(name: str, kind: str, layers: int | None) -> Models:
    """A model by name; one of 27B can have another number of layers."""
    if name == "bundled":
        return open_models(None, None)
    return opened(RELEASED[name] if layers is None else shape_of_27b(layers), kind)


def main() -> None:
    """Print a line for each number of layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"'bundled' or one of {', '.join(RELEASED)}")
    parser.add_argument("--type", default="Q4_K", help="of the matrices of a released model (default: Q4_K)")
    parser.add_argument("--layers", type=int, nargs="+", help="of Qwen3.6-27B, instead of all 64")
    parser.add_argument("--kernels", nargs="+", choices=("pallas", "xla"), default=["pallas", "xla"])
    parser.add_argument("--draft", type=int, nargs="+", default=[3], metavar="K")
    parser.add_argument("--kv-type", default="bf16", help="of KV caches (default: bf16)")
    parser.add_argument("--context", type=int, default=4096, help="slots of a sequence (default: 4096)")
    parser.add_argument("--by-scope", action="store_true", help="also list where launches come from")
    parser.add_argument("--save", metavar="FILE", help="write the last compiled program to a file, as text")
    args = parser.parse_args()
    print(f"jax {jax.__version__}, compiled for an H100; {args.type}, {args.kv_type} caches, greedy, batch 1")
    print(f"{'model':<14} {'layers':>6} {'kernels':<7} {'K':>2} {'launches':>8} {'waits':>5} {'compile s':>9}  by kind")
    device = gpu_device()
    for layers in args.layers or [None]:
        for kernels in args.kernels:
            for drafts in args.draft:
                models = models_of(args.model, args.type, layers)
                settings: dict[str, Any] = {"kv_types": KVTypes(args.kv_type, args.kv_type), "rule": "greedy"}
                given = models if drafts else models._replace(drafter=None)
                own = None if kernels == "pallas" else "xla"
                model = Outlined.of(given, "gpu", device=device, kernels=own, max_drafts=drafts, **settings)
                print("lowering ...", file=sys.stderr, flush=True)
                lowered = model.rounds(1, args.context)
                print("compiling ...", file=sys.stderr, flush=True)
                begin = time.process_time()
                text = lowered.compile().as_text()
                seconds = time.process_time() - begin
                if args.save:
                    with open(args.save, "w", encoding="utf-8") as file:
                        file.write(text)
                found = Program(text, turns=max(drafts - 1, 1)).round()
                kinds = ", ".join(f"{name} {count}" for name, count in found.kernels.most_common(8))
                count = models.target.num_layers
                cells = f"{args.model:<14} {count:>6} {kernels:<7} {drafts:>2} {found.total:>8} {found.waits:>5}"
                print(f"{cells} {seconds:>9.1f}  {kinds}", flush=True)
                if args.by_scope:
                    groups: Counter[str] = Counter()
                    for scope, launches in found.scopes.items():
                        groups[short(scope)] += launches
                    for scope, launches in groups.most_common(60):
                        print(f"    {launches:>5}  {scope}")


if __name__ == "__main__":
    main()
