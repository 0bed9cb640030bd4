"""What recording a trace costs: two programs that decode the same, one of them with a trace, take turns.

Whether a draft is accepted is drawn by lot, so that random weights will do. The last column is the median of the ratios
of neighbouring turns. `--greedy` leaves out drawing, whose distributions the trace needs too.

    python benchmarks/random_model.py q8.gguf --type Q8_0 --layers 24
    python benchmarks/trace_cost.py --model q8.gguf
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from specjax.analysis.benchmark import random_prompt
from specjax.decoding.acceptance import Synthetic
from specjax.decoding.decoder import Decoder, DecodeState
from specjax.decoding.loop import decode_chunk
from specjax.models.protocol import Params
from specjax.runtime.compilation_cache import use_compilation_cache

PROMPT_TOKENS = 32


ROUNDS = 4
"""Rounds of a chunk."""


@dataclass
class Decoding:
    """A program with its state, whose rows decode."""

    decoder: Decoder
    params: Params
    state: DecodeState

    @staticmethod
    def started(model: specjax.Model, options: specjax.GenerateOptions, batch: int, slots: int) -> Decoding:
        """The state that an engine has reached after the first token, with budgets that do not end."""
        engine = model.engine([options], seats=batch, slots=slots)
        if drafts := engine.decoder.max_drafts:
            engine.decoder = replace(engine.decoder, rule=Synthetic((0.7,) * drafts))
        for sequence in range(batch):
            prompt = random_prompt(model.target.vocab_size, PROMPT_TOKENS, sequence)
            engine.submit(model.request(prompt, replace(options, max_tokens=1), sequence=sequence))
        for _ in engine.step():
            pass
        state = replace(engine.state, budget=jnp.full((batch,), slots, jnp.int32))
        decoding = Decoding(engine.decoder, engine.params, state)
        decoding.seconds_of_a_round()  # compiles
        return decoding

    def seconds_of_a_round(self) -> float:
        """Of a chunk of rounds, until the host has read them."""
        begin = time.perf_counter()
        self.state, record = decode_chunk(self.decoder, self.params, self.state, ROUNDS)
        jax.device_get(record)
        return (time.perf_counter() - begin) / ROUNDS


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file or safetensors folder (default: the bundled model)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--draft", type=int, default=3)
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--slots", type=int, default=1024)
    parser.add_argument("--greedy", action="store_true", help="no drawing")
    args = parser.parse_args()
    use_compilation_cache()
    model = specjax.load(args.model, need_tokenizer=False)
    table = Table(title=f"{model.path.name}, K = {args.draft}; {description()}")
    for column in ("batch", "round, ms", "with a trace, ms", "ratio"):
        table.add_column(column, justify="right")
    for batch in args.batch:
        plain = specjax.GenerateOptions(
            draft=args.draft, max_tokens=args.slots, ignore_eos=True, temperature=0.0 if args.greedy else 0.8
        )
        runs = [Decoding.started(model, each, batch, args.slots) for each in (plain, replace(plain, trace=True))]
        times: list[list[float]] = [[], []]
        for turn in track(range(args.turns), f"batch {batch}", console=Console(stderr=True)):
            for which in (0, 1) if turn % 2 else (1, 0):
                times[which].append(runs[which].seconds_of_a_round())
        ratio = statistics.median(traced / own for own, traced in zip(*times, strict=True))
        table.add_row(str(batch), *(f"{1e3 * statistics.median(each):.2f}" for each in times), f"{ratio:.3f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
