"""What a round costs if the drafter scores only some tokens: milliseconds by the size of the draft vocabulary.

    python benchmarks/draft_vocabulary.py                        # V = 248320, 1 GB in a temporary folder
    python benchmarks/draft_vocabulary.py --vocab 4096 --layers 4 --sizes 512

Random weights in the shape of Qwen3.5-0.8B with its MTP head: the text they would write is noise, the time it takes is
not. Sizes take turns, and all columns are computed from medians over the turns. `head` is what a draft costs more than
with a head of 16 tokens, K drafts together, and `share` is that over the whole round. `rounds` is how many rounds fit
into the time of one with all tokens. It is the gain in speed only as long as as many drafts are accepted, which this
script does not look at. Use a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from machine import description
from random_model import SCALES, write_random_model
from verify_cost import shape_of_0_8b

import specjax
from checkpoints.mapping.table import put_on_default_device
from pallas_kernels.matmul import leaves
from specjax.analysis.profiling import RoundCost, round_cost
from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import idle_state
from specjax.decoding.settings import DraftConfig, Settings
from specjax.models.drafters.trimmed import trimmed
from specjax.models.protocol import Params
from specjax.runtime.model import Model

NO_HEAD = 16
"""Tokens of a head that costs nothing: one panel of rows."""


class Case(NamedTuple):
    """A decoder with a draft vocabulary, and what its head has in memory."""

    decoder: Decoder
    params: Params
    num_bytes: int


def case(model: Model, size: int, drafts: int) -> Case:
    """The model whose drafter scores the `size` lowest ids; the whole head if these are all."""
    assert model.drafter is not None
    drafter, params = model.drafter, model.params
    heads = model.params["target"]["embed"]
    if size < model.target.vocab_size:
        drafter, added = trimmed(drafter, params, np.arange(size, dtype=np.int32), put_on_default_device)
        params, heads = params | added, added["trimmed"]["rows"]
    decoder = Decoder(model.target, drafter, rule="greedy", max_drafts=drafts)
    return Case(decoder, params, sum(leaf.nbytes for leaf in leaves(heads)))


def cost(case: Case, context: int) -> RoundCost:
    """The halves of a round with caches of so many slots."""
    decoder = case.decoder
    state = idle_state(decoder, decoder.settings([Settings(draft=DraftConfig(n_max=0))]), context)
    return round_cost(decoder, case.params, state)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=248320, help="V")
    parser.add_argument("--sizes", type=int, nargs="+", default=[65536, 32768], help="of draft vocabularies")
    parser.add_argument("--drafts", type=int, default=3, help="K")
    parser.add_argument("--type", choices=list(SCALES), default="Q8_0", help="block format of the matrices")
    parser.add_argument("--head", choices=list(SCALES), help="of the embedding table (default: as the others)")
    parser.add_argument("--packed", choices=("a8", "a16"), default="a16", help="how products round activations")
    parser.add_argument("--context", type=int, default=512, help="slots of the KV caches")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_random_model(path, shape_of_0_8b(args.layers, args.vocab), args.type, args.head)
        model = specjax.load(path, packed=args.packed)
    sizes = [args.vocab, *args.sizes, NO_HEAD]
    cases = {size: case(model, size, args.drafts) for size in sizes}
    turns = [{size: cost(each, args.context) for size, each in cases.items()} for _ in range(args.turns)]

    print(
        f"{description()}; Qwen3.5-0.8B widths, {args.layers} layers, V={args.vocab}, {args.type}, head"
        f" {args.head or args.type}, {args.packed}; K={args.drafts}, medians of {args.turns} turns"
    )
    print(f"{'tokens':>7} {'head MB':>8} {'draft ms':>9} {'head ms':>8} {'round ms':>9} {'share':>6} {'rounds':>7}")
    # Verification does not know the size: one median counts for all.
    verify = statistics.median(each.verify for turn in turns for each in turn.values())
    drafting = {size: statistics.median(turn[size].draft for turn in turns) for size in sizes}
    for size, draft in drafting.items():
        head, whole = draft - drafting[NO_HEAD], verify + draft
        share, rounds = head / whole, (verify + drafting[args.vocab]) / whole
        print(
            f"{size:>7} {cases[size].num_bytes / 1e6:>8.1f} {draft * 1e3:>9.2f} {head * 1e3:>8.2f}"
            f" {whole * 1e3:>9.2f} {share:>6.1%} {rounds:>7.3f}"
        )


if __name__ == "__main__":
    main()
