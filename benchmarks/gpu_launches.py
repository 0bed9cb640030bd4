"""How many kernels a GPU launches in a round, counted in the program that XLA makes for an H100: without a GPU.

    export JAX_PLATFORMS=cpu # where there is no GPU
    python benchmarks/gpu_launches.py bundled
    python benchmarks/gpu_launches.py Qwen3.6-27B --layers 4 8 --type Q4_K
    python benchmarks/gpu_launches.py Qwen3.6-27B --layers 4 --kernels xla --by-scope

It needs jax 0.11 with the plugin for CUDA, and NVIDIA's assembler (pip install 'jax[cuda13-local]>=0.11,<0.12'
nvidia-cuda-nvcc). No GPU and no driver has to be there; without JAX_PLATFORMS the plugin would look for them. Beside a
GPU XLA tries forms of products and takes the fastest; here nothing can be tried. So a product may take one kernel more
or fewer on a device.

Counted is the list of what the program runs ("thunks"), as XLA writes it to the folder of its dumps. Of loops the body
counts as often as it turns, the loop over drafts K - 1 times; of branches the longest.

Columns: kernels and copies of a round on the device; how many of them are Pallas kernels; how many launches the host
makes for them, where a CUDA graph counts as one; how many graphs there are; waits, each turn of a loop and each branch,
where the host must see a number before it goes on; seconds of processors for compiling.

--by-scope lists where the kernels come from: the parts of the program by the names of its functions and modules.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from programs import Outlined, gpu_devices
from released_models import RELEASED, opened, shape_of_27b

from specjax.runtime.loading import Models, open_models
from specjax.state import KVTypes

THUNK = re.compile(r"( *)(\d+): k(\w+)")
LABEL = re.compile(r" *(\w+):$")
GRAPH, LOOP, BRANCHES, PALLAS = "CommandBuffer", "While", "Conditional", "CustomCall"


@dataclass(frozen=True)
class Thunk:
    """Something that a program runs, or a loop, a branch or a graph of such things.

    Attributes:
        kind: in XLA's words, such as "CustomKernel".
        number: by which metadata know it.
        parts: what it consists of, by name: the condition and the body of a loop, branches, "" for other things.
    """

    kind: str
    number: int
    parts: dict[str, list[Thunk]] = field(default_factory=dict)


def read(text: str) -> list[Thunk]:
    """The thunks of a program, as XLA writes them: one a line, what is inside of others further to the right."""
    whole = Thunk("", -1)
    inside: list[tuple[int, Thunk]] = [(-1, whole)]
    label = ""
    for line in text.splitlines():
        if found := LABEL.match(line):
            label = found[1]
        elif found := THUNK.match(line):
            indent, thunk = len(found[1]), Thunk(found[3], int(found[2]))
            while inside[-1][0] >= indent:
                inside.pop()
            owner = inside[-1][1]
            owner.parts.setdefault(label if owner.kind in (LOOP, BRANCHES) else "", []).append(thunk)
            inside.append((indent, thunk))
    return whole.parts[""]


def total(thunks: list[Thunk], value: Callable[[Thunk], float | None], turns: int) -> float:
    """The sum of what `value` says of thunks; where it says None, of those inside, in loops once for each turn."""
    sums = 0.0
    for each in thunks:
        if (own := value(each)) is not None:
            sums += own
            continue
        inner = [total(part, value, turns) for part in each.parts.values()]
        sums += max(inner, default=0) if each.kind == BRANCHES else sum(inner) * (turns if each.kind == LOOP else 1)
    return sums


def on_device(thunk: Thunk) -> float | None:
    """Kernels and copies."""
    return None if thunk.parts else 1


def by_host(thunk: Thunk) -> float | None:
    """Launches that the host makes."""
    return None if thunk.parts and thunk.kind != GRAPH else 1


def pallas(thunk: Thunk) -> float | None:
    """Kernels that are custom calls."""
    return None if thunk.parts else float(thunk.kind == PALLAS)


def graphs(thunk: Thunk) -> float | None:
    """CUDA graphs."""
    return float(thunk.kind == GRAPH) if thunk.kind == GRAPH or not thunk.parts else None


def round_in(thunks: list[Thunk], turns: int) -> list[Thunk]:
    """A turn of the loop over rounds, which is the longest one."""
    loops = [each for each in thunks if each.kind == LOOP]
    longest = max(loops, key=lambda each: total([each], on_device, turns))
    return [thunk for part in longest.parts.values() for thunk in part]


def waits_of(thunks: list[Thunk], turns: int) -> int:
    """Times that the host waits in a round, the test whether there is another one included."""
    count = 1
    for each in thunks:
        if each.kind in (LOOP, BRANCHES):
            inner = [waits_of(part, turns) - 1 for part in each.parts.values()]
            count += turns * (1 + sum(inner)) if each.kind == LOOP else 1 + max(inner)
    return count


def scopes_of(thunks: list[Thunk], turns: int, names: dict[int, str]) -> Counter[str]:
    """How many kernels come from where, by names of functions and modules without numbers of layers."""
    found: Counter[str] = Counter()
    for each in thunks:
        inner = [scopes_of(part, turns, names) for part in each.parts.values()]
        for part in [max(inner, key=Counter.total)] if each.kind == BRANCHES else inner:
            for name, count in part.items():
                found[name] += count * (turns if each.kind == LOOP else 1)
        if not each.parts:
            found[names.get(each.number, "")] += 1
    return found


def names_of(metadata: str, program: str) -> dict[int, str]:
    """By number of a thunk the scope that its operation stands in."""
    scopes = dict(re.findall(r"%(\S+) = .*?op_name=\"([^\"]*)\"", program))
    found = {}
    for name, number in re.findall(r'profile_annotation: "([^"]*)"\s+thunk_id: (\d+)', metadata):
        parts = [
            part for part in scopes.get(name, "").split("/") if not re.match(r"jit\(|while|body|cond|branch_", part)
        ]
        found[int(number)] = re.sub(r"_\d+\b", "", "/".join(parts[:-1])) or "(others)"
    return found


def compiled(lowered: jax.stages.Lowered, folder: Path) -> tuple[list[Thunk], str]:
    """The thunks of a program, and their metadata; XLA writes files into the folder."""
    options = {"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True, "xla_dump_hlo_module_re": ".*decode_chunk.*"}
    lowered.compile(compiler_options=options)
    (thunks,) = folder.glob("*.thunk_sequence_after_thunk_passes.txt")
    (metadata,) = folder.glob("*.thunk_metadata.txt")
    return read(thunks.read_text()), metadata.read_text()


def models_of(name: str, kind: str, layers: int | None) -> Models:
    """A model by name; one of 27B can have another number of layers."""
    if name == "bundled":
        return open_models(None, None)
    return opened(RELEASED[name] if layers is None else shape_of_27b(layers), kind)


def main() -> None:
    """Print a line for each number of layers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=["bundled", *RELEASED])
    parser.add_argument("--type", default="Q4_K", help="of the matrices of a released model (default: Q4_K)")
    parser.add_argument("--layers", type=int, nargs="+", help="of Qwen3.6-27B, instead of all 64")
    parser.add_argument("--kernels", nargs="+", choices=("pallas", "xla"), default=["pallas", "xla"])
    parser.add_argument("--draft", type=int, nargs="+", default=[3], metavar="K")
    parser.add_argument("--kv-type", default="bf16", help="of KV caches (default: bf16)")
    parser.add_argument("--context", type=int, default=4096, help="slots of a sequence (default: 4096)")
    parser.add_argument("--by-scope", action="store_true", help="also list where launches come from")
    args = parser.parse_args()
    print(f"jax {jax.__version__}, compiled for an H100; {args.type}, {args.kv_type} caches, greedy, batch 1")
    titles = ("layers", "K", "device", "Pallas", "host", "graphs", "waits", "cpu s")
    print(f"{'model':<12} {'kernels':<7} " + " ".join(f"{title:>7}" for title in titles))
    (device,) = gpu_devices()
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
                with tempfile.TemporaryDirectory() as folder:
                    thunks, metadata = compiled(lowered, Path(folder))
                    (program,) = Path(folder).glob("*gpu_after_optimizations.txt")
                    names = names_of(metadata, program.read_text())
                seconds = time.process_time() - begin
                turns = max(drafts - 1, 0)
                own_round = round_in(thunks, turns)
                counts = [total(own_round, value, turns) for value in (on_device, pallas, by_host, graphs)]
                cells = (
                    models.target.num_layers,
                    drafts,
                    *map(int, counts),
                    waits_of(own_round, turns),
                    round(seconds),
                )
                print(f"{args.model:<12} {kernels:<7} " + " ".join(f"{cell:>7}" for cell in cells), flush=True)
                if args.by_scope:
                    for scope, count in scopes_of(own_round, turns, names).most_common(60):
                        print(f"    {count:>5}  {scope}")


if __name__ == "__main__":
    main()
