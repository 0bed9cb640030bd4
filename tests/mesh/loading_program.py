"""What each process of a job does in tests of loading: MODEL MESH SMALL, then the options by which processes meet.

SMALL is a small model in a file of the same kind. It is loaded first, so that nothing is imported later. Process 0
prints as JSON what it took each process to load MODEL.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax

import specjax
from specjax.mesh import hosts


def bytes_read() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def memory(name: str) -> int:
    """Bytes of memory that the process has ("VmRSS"), or the most that it has had ("VmHWM")."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def loading(path: str, mesh: str, small: str) -> dict[str, int]:
    """In bytes: what a process reads, how much its memory grows at the peak, what it then has of the model, and the
    largest parameter of the whole model."""
    kept = specjax.load(small, mesh=mesh)  # kept, so that no memory of it is used again
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    read, held = bytes_read(), memory("VmRSS")
    model = specjax.load(path, mesh=mesh)
    found = {"read": bytes_read() - read, "peak": memory("VmHWM") - held}
    del kept
    leaves = jax.tree.leaves(model.params)
    own = sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards)
    return found | {"part": own, "largest": max(leaf.nbytes for leaf in leaves)}


if __name__ == "__main__":
    path, mesh, small, _, coordinator, _, processes, _, process = sys.argv[1:]
    hosts.join(coordinator, int(processes), int(process))
    counts = hosts.of_all(json.dumps(loading(path, mesh, small)))
    if hosts.is_first():
        print(json.dumps([json.loads(each) for each in counts]))
