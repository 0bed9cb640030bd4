"""A whole step of decoding from a quantized GGUF: milliseconds here and in llama.cpp, on the same file and threads.

    python benchmarks/decode_step.py --llama-bench path/to/llama-bench
    python benchmarks/decode_step.py --llama-bench path/to/llama-bench --tokens 32768 --kv q8_0 --types Q4_K

Random weights in the shape of Qwen3.5-0.8B, written to a temporary folder. A step of one row is plain decoding, one of
four rows verifies three drafts; llama.cpp computes them as `tg` and `pp4` of llama-bench, the latter with the logits of
the last row only. `read` is the share of the rate at which this machine reads memory, measured in the same run, that
one row reaches; it reads the weights and the caches. Programs take turns and the best of each counts; without
--llama-bench its columns stay empty. With --small-pages, rows named "4K" use copies of the weights in memory of XLA's,
which has pages of 4 KiB unless Linux gives large ones to all programs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
from machine import description, read_rate
from random_model import write_random_model
from verify_cost import shape_of_0_8b

import specjax
from specjax.analysis.profiling import round_cost
from specjax.decoding.decoder import Decoder, bytes_per_token
from specjax.decoding.new_state import idle_state
from specjax.decoding.settings import DraftConfig, Settings
from specjax.runtime.model import Model
from specjax.runtime.slots import slots_for
from specjax.state import KVTypes

ROWS = (1, 4)
FILES = (("Q8_0", "Q8_0"), ("Q4_0", "Q6_K"), ("Q4_K", "Q6_K"))
"""Block formats of the layers and of the embedding table, as files named Q8_0, Q4_0 and Q4_K_S have them."""


def ours(model: Model, tokens: int, kv: str) -> dict[int, float]:
    """Seconds of a step by rows, after so many tokens. Caches hold zeros, which take as long as others."""
    seconds = {}
    for rows in ROWS:
        drafter = model.drafter if rows > 1 else None
        decoder = Decoder(model.target, drafter, rule="greedy", max_drafts=rows - 1, kv_types=KVTypes(kv, kv))
        state = idle_state(decoder, decoder.settings([Settings(draft=DraftConfig(n_max=0))]), slots_for(tokens + 32))
        sequences = replace(state.sequences, length=jnp.full_like(state.sequences.length, tokens))
        seconds[rows] = round_cost(decoder, model.params, replace(state, sequences=sequences)).verify
    return seconds


def copied(model: Model) -> Model:
    """The model with its weights in memory of XLA's."""
    return replace(model, params=jax.tree.map(jnp.copy, model.params))


def llama_seconds(command: Sequence[object], model: Path) -> dict[int, float]:
    """What llama-bench takes for the prompts and the step (1) that a command asks of it, by their tokens."""
    done = subprocess.run(
        [*map(str, command), "-m", str(model), "-fa", "auto", "-o", "json"], check=True, capture_output=True, text=True
    )
    return {
        run["n_prompt"] or 1: min(run["samples_ns"]) / 1e9 / (1 if run["n_prompt"] else run["n_gen"])
        for run in json.loads(done.stdout)
    }


def theirs(program: Path, model: Path, tokens: int, kv: str, threads: int) -> dict[int, float]:
    """Seconds of a step by rows, in llama.cpp."""
    turns = 1 if tokens else 5  # before each turn it feeds the tokens anew, which takes minutes
    command = [program, "-t", threads, "-p", max(ROWS), "-n", 16, "-r", turns, "-d", tokens, "-ctk", kv, "-ctv", kv]
    return llama_seconds(command, model)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", type=Path, metavar="PROGRAM")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp; XLA takes all cores")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=65536)
    parser.add_argument("--tokens", type=int, default=0, help="that are in the caches before the step")
    parser.add_argument("--kv", default="f16", help="type of the caches, one that both programs know")
    parser.add_argument("--types", nargs="+", default=[kind for kind, _ in FILES], help="of the layers")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--small-pages", action="store_true", help="also time weights in memory of XLA's")
    args = parser.parse_args()

    print(f"{description()}; Qwen3.5-0.8B widths, {args.layers} layers, V={args.vocab}")
    print(f"{args.tokens} tokens in {args.kv} caches")
    print("milliseconds; x: how many times as fast as llama.cpp")
    columns = " ".join(f"{name:>7} {'llama':>7} {'x':>5}" for name in ("1 row", "4 rows"))
    print(f"{'file':<12} {'GB':>5} {'':>6} {'read':>5} {columns}")
    pieces = jnp.split(jnp.ones((1 << 16, 1 << 10), jnp.float32), 8)
    with tempfile.TemporaryDirectory() as folder:
        for kind, head in (file for file in FILES if file[0] in args.types):
            path = Path(folder) / f"{kind}.gguf"
            write_random_model(path, shape_of_0_8b(args.layers, args.vocab), kind, head)
            models = {act: specjax.load(path, packed=act) for act in ("a16", "a8")}
            if args.small_pages:
                models |= {f"{act} 4K": copied(model) for act, model in models.items()}
            trunk_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(models["a16"].params["target"]))
            best: dict[tuple[str, int], float] = {}
            for _ in range(args.turns):
                measured = {act: ours(model, args.tokens, args.kv) for act, model in models.items()}
                if args.llama_bench is not None:
                    measured["llama"] = theirs(args.llama_bench, path, args.tokens, args.kv, args.threads)
                for name, seconds in measured.items():
                    for rows, value in seconds.items():
                        best[name, rows] = min(value, best.get((name, rows), value))
            plain = Decoder(models["a16"].target, None, "greedy", 0, kv_types=KVTypes(args.kv, args.kv))
            read_bytes = trunk_bytes + args.tokens * bytes_per_token(plain)
            limit = read_bytes / max(read_rate(pieces) for _ in range(args.turns))
            for act in models:
                cells = [f"{kind:<12} {path.stat().st_size / 1e9:>5.2f} {act:<6} {limit / best[act, 1]:>5.2f}"]
                for rows in ROWS:
                    other = best.get(("llama", rows))
                    cells.append(f"{best[act, rows] * 1e3:>7.1f} {other * 1e3 if other else float('nan'):>7.1f}")
                    cells.append(f"{other / best[act, rows] if other else float('nan'):>5.2f}")
                print(" ".join(cells), flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
