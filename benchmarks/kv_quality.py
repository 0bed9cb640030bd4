"""What each type of KV cache costs in quality, next to its bits: the bundled model on text that it was not trained on.

Columns: bits per value, scales included; perplexity of held-out windows of 512 tokens, teacher-forced; the mean KL
divergence from the predictions with f32 caches, in nats per token; how often the most likely token stays the same; and
tau, the mean tokens per round of greedy decoding with three drafts, where the drafter's own cache has the same type.

    python benchmarks/kv_quality.py
    python benchmarks/kv_quality.py --types f32 q8_0 q8_0/turbo3     # keys / values
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from pallas_kernels.kv_formats import FORMATS
from specjax.models.protocol import Params, Target
from specjax.state import KV_TYPES, KVTypes, SequenceState
from specjax.training.corpus import standard_library

PROMPTS = Path(__file__).parent / "prompts.jsonl"
DEFAULT = (*KV_TYPES, "q8_0/q4_0", "q8_0/turbo3", "turbo4/turbo3")


def held_out_windows(model: specjax.Model, count: int, length: int) -> np.ndarray:
    """Windows from the beginnings of held-out modules, [count, length]."""
    windows = [
        tokens[start : start + length]
        for document in standard_library().held_out
        for tokens in [model.encode(document.text)]
        for start in range(0, min(len(tokens) - length, 2 * length) + 1, length)
    ]
    return np.array(windows[:count], np.int32)


@partial(jax.jit, static_argnames=("target", "types"))
def log_probabilities(target: Target, params: Params, tokens: jax.Array, types: KVTypes) -> jax.Array:
    """Of every next token after every token, [B, T, V]; the windows are fed at once."""
    batch, length = tokens.shape
    layers = target.init_layers(batch, length, rows=1, chunk=length, rollback="replay", kv_types=types)
    state = SequenceState(layers, None, jnp.zeros((batch,), jnp.int32))
    output, _ = target.extend(params, tokens, jnp.full((batch,), length), state, rows="all")
    assert output.logits is not None
    return jax.nn.log_softmax(output.logits)


@jax.jit
def compare(tokens: jax.Array, got: jax.Array, exact: jax.Array) -> jax.Array:
    """Negative log-likelihood, KL divergence, and whether the best token stays, [3, B, T - 1]."""
    got, exact = got[:, :-1], exact[:, :-1]
    likelihood = jnp.take_along_axis(got, tokens[:, 1:, None], axis=-1)[..., 0]
    divergence = jnp.sum(jnp.exp(exact) * (exact - got), axis=-1)
    return jnp.stack([-likelihood, divergence, got.argmax(-1) == exact.argmax(-1)])


def tokens_per_round(model: specjax.Model, prompts: list[str], types: KVTypes, max_tokens: int) -> float:
    """Of greedy decoding with three drafts."""
    results = model.generate_batch(
        prompts, max_tokens=max_tokens, draft=3, ignore_eos=True, kv_type_k=types.k, kv_type_v=types.v
    )
    return sum(r.stats.tokens for r in results) / sum(r.stats.rounds for r in results)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="GGUF file or safetensors folder (default: the bundled model)")
    parser.add_argument("--types", nargs="+", default=DEFAULT, help="one name, or keys/values (default: all and three)")
    parser.add_argument("--windows", type=int, default=24)
    parser.add_argument("--length", type=int, default=512, help="tokens of a window")
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()
    console = Console(stderr=True)

    model = specjax.load(args.model)
    windows = held_out_windows(model, args.windows, args.length)
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines() if line]
    width = model.config.head_width
    table = Table("K", "V", "bits", "perplexity", "KL", "same token", "tau", title=description())
    for name in track(args.types, "types", console=console):
        types = KVTypes(*(name.split("/") * 2)[:2])
        rows = []
        for part in np.array_split(windows, -(-len(windows) // 4)):
            exact = log_probabilities(model.target, model.params, part, KVTypes())
            rows.append(np.asarray(compare(part, log_probabilities(model.target, model.params, part, types), exact)))
        loss, divergence, same = np.concatenate(rows, axis=1).reshape(3, -1).mean(axis=1, dtype=np.float64)
        bits = sum(FORMATS[kind].bits_per_value(width) for kind in (types.k, types.v)) / 2
        tau = tokens_per_round(model, prompts, types, args.max_tokens)
        figures = f"{bits:.3g}", f"{np.exp(loss):.3f}", f"{divergence:.2e}", f"{same:.2%}", f"{tau:.2f}"
        table.add_row(types.k, types.v, *figures)
    tokens = windows.size - len(windows)
    Console(width=120).print(table)
    print(f"{len(windows)} windows, {tokens} predictions; heads of {width} values")


if __name__ == "__main__":
    main()
