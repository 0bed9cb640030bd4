"""Prompts of a quantized GGUF: tokens a second here and in llama.cpp, on the same file and threads.

    python benchmarks/prompt_step.py --llama-bench path/to/llama-bench
    python benchmarks/prompt_step.py --llama-bench path/to/llama-bench --shape 27b --layers 32 --types Q4_K \
      --activations a16 --dtype bfloat16 --kv bf16 --tokens 512 2048           # for a GPU

Random weights in the shape of a released model, Qwen3.5-0.8B if no other is asked for, written to a temporary folder. A
prompt is fed without drafter, from its first token until the first new one is known; llama.cpp's figure is `pp` of
llama-bench, which samples nothing. Prompts are random tokens. On a CPU, `limit` is the share of the rate of products
that vectors allow (known for AVX-512 VNNI and AVX2), measured in the same run by a loop of nothing but sums of products
of bytes, which the products with matrices alone reach: activations of 8 bits need one such product for each weight and
token, those of 16 bits two. Programs take turns and the best of each counts; without --llama-bench its columns stay
empty.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from pathlib import Path

import jax
from arithmetic_rate import OF_BYTES
from decode_step import FILES, llama_seconds
from limits import Limit
from machine import description
from random_model import SHAPES, write_random_model

import specjax
from pallas_kernels.matmul import QTensor
from specjax.analysis.benchmark import random_prompt

ACTIVATIONS = {"a8": 1, "a16": 2}
"""Products of bytes for each weight and token."""


def our_seconds(model: specjax.Model, tokens: int, kv: str, seed: int) -> float:
    """Of one prompt."""
    options = specjax.GenerateOptions(max_tokens=1, draft=0, kv_type_k=kv, kv_type_v=kv)
    return model.generate(random_prompt(model.target.vocab_size, tokens, seed), options).timings.prefill


def weights_of_layers(model: specjax.Model) -> int:
    """How many weights each token of a prompt is multiplied with; logits are of the last one only."""
    layers = {name: params for name, params in model.params["target"].items() if name != "embed"}
    leaves = jax.tree.leaves(layers, is_leaf=lambda leaf: isinstance(leaf, QTensor))
    return sum(math.prod(leaf.shape) for leaf in leaves if isinstance(leaf, QTensor))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-bench", type=Path, metavar="PROGRAM")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp; XLA takes all cores")
    parser.add_argument("--shape", choices=list(SHAPES), default="0.8b", help="whose widths it has (default: 0.8b)")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=65536, help="of the shape 0.8b (default: 65536)")
    parser.add_argument("--dtype", default="float32", help="of activations here (default: float32)")
    parser.add_argument("--kv", default="f32", help="type of the caches here (default: f32)")
    parser.add_argument("--activations", nargs="+", choices=list(ACTIVATIONS), default=list(ACTIVATIONS))
    parser.add_argument("--types", nargs="+", default=[kind for kind, _ in FILES], help="of the layers")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512], help="of the prompts; default: 64 512")
    args = parser.parse_args()

    print(f"{description()}; widths of {args.shape}, {args.layers} layers")
    print("tokens a second; x: how many times as fast as llama.cpp")
    columns = " ".join(f"{f'{tokens} tokens':>11} {'limit':>6} {'llama':>7} {'x':>5}" for tokens in args.tokens)
    print(f"{'file':<6} {'':>4} {columns}")
    limit = Limit(OF_BYTES)
    known = jax.default_backend() == "cpu" and math.isfinite(limit.products)
    with tempfile.TemporaryDirectory() as folder:
        for kind, head in (file for file in FILES if file[0] in args.types):
            path = Path(folder) / f"{kind}.gguf"
            write_random_model(path, SHAPES[args.shape](args.layers, args.vocab), kind, head)
            models = {act: specjax.load(path, packed=act, dtype=args.dtype) for act in args.activations}
            best: dict[tuple[str, int], float] = {}
            for turn in range(args.turns + 1):
                limit.measure()
                for tokens in args.tokens:
                    times = {act: our_seconds(model, tokens, args.kv, turn) for act, model in models.items()}
                    if turn == 0:
                        continue  # it compiled
                    if args.llama_bench is not None:
                        program = [args.llama_bench, "-t", args.threads, "-p", tokens, "-n", 0, "-r", 1]
                        times["llama"] = llama_seconds(program, path)[tokens]
                    for name, seconds in times.items():
                        best[name, tokens] = min(seconds, best.get((name, tokens), seconds))
            weights = weights_of_layers(next(iter(models.values())))
            for act in models:
                cells = [f"{kind:<6} {act:>4}"]
                for tokens in args.tokens:
                    ours, other = best[act, tokens], best.get(("llama", tokens), float("nan"))
                    reached = tokens * ACTIVATIONS[act] * weights / ours / limit.products if known else float("nan")
                    cells.append(f"{tokens / ours:>11.0f} {reached:>6.2f} {tokens / other:>7.0f} {other / ours:>5.2f}")
                print(" ".join(cells), flush=True)
            path.unlink()
    if known:
        print(f"limit: {limit.products / 1e9:.0f} billion products of bytes a second")


if __name__ == "__main__":
    main()
