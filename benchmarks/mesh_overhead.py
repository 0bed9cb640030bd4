"""What it costs to split a model over two devices of one CPU: the same program on the same cores, whole and split.

    python benchmarks/mesh_overhead.py                                   # the bundled model
    python benchmarks/mesh_overhead.py --model model.gguf --batch 1 8 --turns 9

Two CPU devices share the cores of one, so that splitting cannot make anything faster here. What it makes slower is what
the split costs: sums between devices, smaller products, threads that wait for each other. Each part is a process of its
own, because the number of devices is chosen when JAX starts: one device with all threads, and two. They take turns,
since the speed of machines drifts, and a turn of each gives one ratio.

Columns: milliseconds of a round on one device and on two, medians; the median of the ratios, and the smallest and
largest of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROUNDS, CHUNKS = 8, 4
"""Rounds of a chunk, and chunks of a measurement."""
FLAG = "--xla_force_host_platform_device_count"


class Part:
    """A process that times chunks on so many devices when it is told to."""

    def __init__(self, devices: int, arguments: list[str]) -> None:
        flags = " ".join([os.environ.get("XLA_FLAGS", ""), f"{FLAG}={devices}"]).strip()
        command = [sys.executable, __file__, *arguments, "--part", str(devices)]
        environment = {**os.environ, "XLA_FLAGS": flags}
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._answer()

    def time(self) -> list[float]:
        """Seconds of a round, for each batch."""
        assert self._process.stdin is not None
        self._process.stdin.write("time\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        """End the process."""
        self._process.communicate()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the part ended with status {self._process.wait()}; see above")
        return json.loads(line)


def serve(args: argparse.Namespace) -> None:
    """Load and compile; then time whenever a line comes in."""
    import jax
    import numpy as np

    import specjax
    from specjax.decoding.loop import decode_chunk
    from specjax.decoding.new_state import new_state
    from specjax.decoding.seats import set_budgets
    from specjax.decoding.settings import DraftConfig, Settings

    mesh = None if args.part == 1 else f"1x{args.part}"
    model = specjax.load(args.model, mesh=mesh)
    decoder = model.decoder(specjax.GenerateOptions(draft=args.draft, kv_type_k="f16", kv_type_v="f16"))

    def chunks(state: Any) -> tuple[Any, float]:
        begin = time.perf_counter()
        for _ in range(CHUNKS):
            state, record = decode_chunk(decoder, model.params, state, ROUNDS)
        jax.block_until_ready(record)
        return state, (time.perf_counter() - begin) / (CHUNKS * ROUNDS)

    def prepared(batch: int) -> Any:
        wishes = Settings(draft=DraftConfig(n_max=args.draft))
        state = new_state(decoder, model.params, decoder.settings([wishes] * batch), args.context)
        return set_budgets(state, np.full(batch, args.context, np.int32), np.ones(batch, bool))

    def measured(batch: int) -> float:
        return chunks(prepared(batch))[1]

    for batch in args.batch:
        measured(batch)
    print("null", flush=True)
    for _ in sys.stdin:
        print(json.dumps([measured(batch) for batch in args.batch]), flush=True)


def main() -> None:
    """Print a line for each batch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="GGUF file (default: the bundled model)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--draft", type=int, default=3, help="drafts of a round (default: 3)")
    parser.add_argument("--context", type=int, default=1024, help="slots of each sequence (default: 1024)")
    parser.add_argument("--turns", type=int, default=7, help="measurements of each part (default: 7)")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        serve(args)
        return
    os.environ["JAX_PLATFORMS"] = "cpu"
    from machine import description

    print(f"{description()}; rounds of {args.draft} drafts, {args.context} slots", flush=True)
    one, two = (Part(devices, sys.argv[1:]) for devices in (1, 2))
    turns = [(one.time(), two.time()) for _ in range(args.turns)]
    for part in (one, two):
        part.stop()
    print(f"{'batch':>6} {'one ms':>8} {'two ms':>8} {'ratio':>6} {'from':>6} {'to':>6}")
    for index, batch in enumerate(args.batch):
        alone, split = ([turn[part][index] for turn in turns] for part in (0, 1))
        ratios = [b / a for a, b in zip(alone, split, strict=True)]
        cells = f"{1e3 * statistics.median(alone):>8.2f} {1e3 * statistics.median(split):>8.2f}"
        print(f"{batch:>6} {cells} {statistics.median(ratios):>6.2f} {min(ratios):>6.2f} {max(ratios):>6.2f}")


if __name__ == "__main__":
    main()
