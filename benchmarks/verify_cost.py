"""What verifying K + 1 tokens costs beside one, and what drafting K costs, at a size bound by reading the weights.

Random weights in the shape of a released model: the text it would write is noise, the time it takes is not. With
acceptance taken from elsewhere the figures give the speed-up that this machine allows.

    python benchmarks/verify_cost.py                 # about 3 GB of memory
    python benchmarks/verify_cost.py --layers 24 --vocab 248320 --context 4096

Columns: milliseconds per call, each over the same for one row; `read` is the share of the machine's read rate, taken in
the same run, at which the call reads the parameters once; `draft` is the time of K drafts over t_verify(1).
"""

from __future__ import annotations

import argparse
import statistics

import jax
from machine import description, read_rate

from specjax.analysis.profiling import round_cost
from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import idle_state
from specjax.decoding.settings import DraftConfig, Settings
from specjax.models import registry
from specjax.models.qwen3_5.config import Qwen35Config, hybrid_layer_types
from specjax.models.qwen3_5.parameters import init_params


def shape_of_0_8b(layers: int, vocab_size: int) -> Qwen35Config:
    """The widths of Qwen3.5-0.8B, with its MTP head."""
    return Qwen35Config(
        vocab_size=vocab_size,
        width=1024,
        layer_types=hybrid_layer_types(layers),
        mlp_width=3584,
        num_heads=8,
        num_kv_heads=2,
        head_width=256,
        rope_width=64,
        rope_theta=1e7,
        conv_width=4,
        linear_key_heads=16,
        linear_value_heads=16,
        linear_key_width=128,
        linear_value_width=128,
        tied_embeddings=True,
        mtp_layers=1,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--vocab", type=int, default=65536)
    parser.add_argument("--context", type=int, default=512, help="slots of the KV caches; all are read")
    parser.add_argument("--drafts", type=int, nargs="+", default=[1, 2, 3, 4, 5, 7], help="values of K")
    parser.add_argument("--turns", type=int, default=3, help="times that all Ks run; medians are printed")
    args = parser.parse_args()

    config = shape_of_0_8b(args.layers, args.vocab)
    params = jax.jit(init_params, static_argnums=0)(config, jax.random.key(0))
    target, drafter = registry.build(config)
    trunk_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(params["target"]))
    rate = read_rate([leaf for leaf in jax.tree.leaves(params) if leaf.size > 1 << 18])
    decoders = {k: Decoder(target, drafter if k else None, rule="greedy", max_drafts=k) for k in [0, *args.drafts]}
    costs = {k: [] for k in decoders}
    for _ in range(args.turns):
        for k, decoder in decoders.items():
            state = idle_state(decoder, decoder.settings([Settings(draft=DraftConfig(n_max=0))]), args.context)
            costs[k].append(round_cost(decoder, params, state))
    one = [cost.verify for cost in costs[0]]

    print(
        f"Qwen3.5-0.8B widths, {args.layers} layers, V={args.vocab}, float32: {trunk_bytes / 1e9:.2f} GB in the trunk;"
    )
    print(f"{description()}, reads {rate / 1e9:.1f} GB/s, context {args.context}")
    print(f"{'rows':>5} {'verify ms':>10} {'over one':>9} {'read':>6} {'draft':>6}")
    for k, samples in costs.items():
        verify = statistics.median(cost.verify for cost in samples)
        over_one = statistics.median(cost.verify / base for cost, base in zip(samples, one, strict=True))
        draft = statistics.median(cost.draft / base for cost, base in zip(samples, one, strict=True))
        print(f"{k + 1:>5} {verify * 1e3:>10.1f} {over_one:>9.2f} {trunk_bytes / verify / rate:>6.2f} {draft:>6.2f}")


if __name__ == "__main__":
    main()
