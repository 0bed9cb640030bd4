"""What formats of weights and types of KV caches cost in quality, next to their bits, on text not trained on.

A setting is WEIGHTS, WEIGHTS+KV or WEIGHTS+K/V. WEIGHTS is a type that `specjax quantize` writes, which all matrices
get, those of the drafter included, as with its option --pure; or one of its mixes, with the drafter at 8 bits. The
original is the model's file, decoded to float32: what the file itself has lost is not seen here. Matrices whose rows do
not divide into a type's blocks get another type, and the table gives the shares of all. Columns:

    bits         per value of the matrices, and per cached value, scales included
    perplexity   of held-out windows, teacher-forced, and its change against the original
    KL           mean Kullback-Leibler divergence from the original's predictions, in nats per token
    same top     how often the most likely token is the original's
    tau          mean tokens per round of greedy decoding with drafts, every prompt's own rounds
    as plain     prompts whose tokens with drafts are those of plain decoding in the same setting; for others the lead
                 of one token over the other as a share of the largest logit, with "!" if rounding does not explain it

What follows a +- is the standard error over windows, or prompts; differences between settings are seen on the same
windows and err less. The status is 1 if tokens differ and it is no near-tie.

    python benchmarks/quality.py
    python benchmarks/quality.py Q4_K_M f32+turbo3 Q4_K_M+q8_0/turbo4 --json quality.json --plot quality.png
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from machine import description
from rich.console import Console
from rich.progress import track
from rich.table import Table

import specjax
from checkpoints.gguf.ggml_types import GGML_TYPES
from checkpoints.quantization import ENCODERS, Quantization, QuantizeOptions, prepare
from checkpoints.quantization.mixes import MIXES
from pallas_kernels import native
from pallas_kernels.kv_formats import FORMATS
from specjax.analysis.divergence import find_divergence
from specjax.models.protocol import Params, Target
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model
from specjax.state import KV_TYPES, KVTypes, SequenceState
from specjax.training.corpus import standard_library

PROMPTS = Path(__file__).parent / "prompts.jsonl"
ORIGINAL = "F32"
DTYPES = {"F16": "float16", "BF16": "bfloat16"}
"""Of products with matrices that are no blocks of integers."""
DEFAULT = (
    *(ORIGINAL, *DTYPES, *ENCODERS, *MIXES),
    *(f"{ORIGINAL}+{kind}" for kind in KV_TYPES if kind != "f32"),
    *(f"{ORIGINAL}+{kinds}" for kinds in ("q8_0/q4_0", "q8_0/turbo3", "turbo4/turbo3")),
    "Q4_K_M+q8_0/turbo4",
)
WINDOWS_AT_ONCE = 4


@dataclass(frozen=True)
class Setting:
    """Formats of a model's weights and of its caches.

    Attributes:
        weights: a type or a mix of types.
        kv: of all caches.
    """

    weights: str
    kv: KVTypes

    @classmethod
    def parse(cls, text: str) -> Setting:
        """Of "Q4_K_M+q8_0/turbo4".

        Raises:
            ValueError: an unknown type.
        """
        weights, _, kinds = text.partition("+")
        if weights.upper() not in (accepted := (ORIGINAL, *DTYPES, *ENCODERS, *MIXES)):
            raise ValueError(f"weights {weights!r} are not known; known are {', '.join(accepted)}")
        k, _, v = (kinds or "f32").partition("/")
        return cls(weights.upper(), KVTypes(k, v or k))

    def __str__(self) -> str:
        return f"{self.weights}+{self.kv}"


@dataclass(frozen=True)
class Estimate:
    """A mean, and its standard error."""

    mean: float
    error: float

    @classmethod
    def over(cls, values: np.ndarray) -> Estimate:
        """Of samples, one per window; the error of a single one is not known."""
        return cls(float(values.mean()), float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0)

    @classmethod
    def of_ratio(cls, above: np.ndarray, below: np.ndarray) -> Estimate:
        """Of sum(above) / sum(below), one of each per prompt."""
        ratio, count = above.sum() / below.sum(), len(above)
        spread = np.sqrt(np.square(above - ratio * below).sum() * count / max(1, count - 1))
        return cls(float(ratio), float(spread / below.sum()))

    def scaled(self, factor: float) -> str:
        """In units of 1 / factor."""
        return f"{self.mean * factor:.3g} +- {self.error * factor:.1g}"


@dataclass(frozen=True)
class Quality:
    """The figures of a setting.

    Attributes:
        weights, k, v: names.
        weight_bits: per value of the matrices.
        kv_bits: per value of the caches.
        shares: of the values of all matrices, by type.
        perplexity: of the windows.
        loss_change: of the loss per token against the original, in nats; perplexity changes by its exponential.
        divergence: Kullback-Leibler, in nats per token.
        same_top: share of predictions.
        tau: tokens per round.
        differing: per prompt whose tokens are not those of plain decoding, where and by what margin.
    """

    weights: str
    k: str
    v: str
    weight_bits: float
    kv_bits: float
    shares: dict[str, float]
    perplexity: float
    loss_change: Estimate
    divergence: Estimate
    same_top: Estimate
    tau: Estimate
    differing: list[dict[str, Any]]


def held_out_windows(model: specjax.Model, count: int, length: int) -> np.ndarray:
    """Windows of held-out modules, [count, length]: the first of each module, then the second of each, and so on."""
    modules = [model.encode(document.text) for document in standard_library().held_out]
    windows = (
        tokens[start : start + length]
        for start in range(0, max(map(len, modules)), length)
        for tokens in modules
        if start + length <= len(tokens)
    )
    return np.array(list(islice(windows, count)), np.int32)


def target_params(model: specjax.Model) -> Params:
    """Without those of the drafter, so that programs of the target do not depend on its formats."""
    return {"target": model.params["target"]}


@partial(jax.jit, static_argnames=("target", "types"))
def log_probabilities(target: Target, params: Params, tokens: jax.Array, types: KVTypes) -> jax.Array:
    """Of every next token after every token, [B, T, V]; the windows are fed at once."""
    batch, length = tokens.shape
    layers = target.init_layers(batch, length, rows=1, chunk=length, rollback="replay", kv_types=types)
    state = SequenceState(layers, None, jnp.zeros((batch,), jnp.int32))
    output, _ = target.extend(params, tokens, jnp.full((batch,), length), state, rows="all")
    assert output.logits is not None
    return jax.nn.log_softmax(output.logits.astype(jnp.float32))


@jax.jit
def compare(tokens: jax.Array, got: jax.Array, exact: jax.Array) -> jax.Array:
    """Means over each window of the loss, its change, the KL divergence, and whether the top stays, [4, B]."""
    got, exact = got[:, :-1], exact[:, :-1]
    loss, exact_loss = (-jnp.take_along_axis(x, tokens[:, 1:, None], axis=-1)[..., 0] for x in (got, exact))
    divergence = jnp.sum(jnp.exp(exact) * (exact - got), axis=-1)
    same = got.argmax(-1) == exact.argmax(-1)
    return jnp.stack([x.mean(axis=-1) for x in (loss, loss - exact_loss, divergence, same.astype(jnp.float32))])


def shares(plan: Quantization) -> dict[str, float]:
    """How the values of the tensors that do not stay float32 are shared among types, the largest share first."""
    values: Counter[str] = Counter()
    for tensor in plan.tensors:
        if tensor.type != ORIGINAL:
            values[tensor.type] += math.prod(tensor.source.shape)
    return {kind: count / values.total() for kind, count in values.most_common()}


def load(source: Path, weights: str, packed: Any, folder: Path) -> tuple[specjax.Model, dict[str, float]]:
    """The model with its matrices in a type or a mix of types, by way of a file, and the shares of the types."""
    if weights == ORIGINAL:
        return specjax.load(source, packed=None), {ORIGINAL: 1.0}
    plan = prepare(source, folder / f"{weights}.gguf", FAMILIES, QuantizeOptions(weights, pure=weights not in MIXES))
    if not plan.destination.exists():
        plan.run()
    return specjax.load(plan.destination, dtype=DTYPES.get(weights, "float32"), packed=packed), shares(plan)


def drafted_and_plain(
    model: specjax.Model, prompts: list[str], options: specjax.GenerateOptions
) -> tuple[Estimate, list[dict[str, Any]]]:
    """tau, and where greedy decoding with drafts parts from plain decoding."""
    drafted = model.generate_batch(prompts, options)
    tau = Estimate.of_ratio(*(np.array([getattr(r.stats, key) for r in drafted]) for key in ("tokens", "rounds")))
    differing = []
    for index, (mine, plain) in enumerate(zip(drafted, model.generate_batch(prompts, options, draft=0), strict=True)):
        divergence = find_divergence(model, plain.prompt_tokens, options, mine.tokens, plain.tokens)
        if divergence is not None:
            differing.append({"prompt": index, **asdict(divergence), "near_tie": divergence.near_tie})
    return tau, differing


def measure(
    model: specjax.Model,
    setting: Setting,
    of_types: dict[str, float],
    windows: list[np.ndarray],
    exact: list[jax.Array],
    prompts: list[str],
    options: specjax.GenerateOptions,
) -> Quality:
    """All figures of a setting.

    Args:
        model: with its weights in the setting's formats.
        setting: what is measured.
        of_types: shares of the types of its matrices.
        windows: some windows at a time.
        exact: the original's log-probabilities in them.
        prompts: to be continued.
        options: how.
    """
    kv = setting.kv
    means = [
        compare(some, log_probabilities(model.target, target_params(model), some, kv), reference)
        for some, reference in zip(windows, exact, strict=True)
    ]
    loss, change, divergence, same = np.concatenate([np.asarray(each, np.float64) for each in means], axis=1)
    tau, differing = drafted_and_plain(model, prompts, replace(options, kv_type_k=kv.k, kv_type_v=kv.v))
    width = model.config.head_width
    return Quality(
        weights=setting.weights,
        k=kv.k,
        v=kv.v,
        weight_bits=sum(
            8 * GGML_TYPES[kind].num_bytes / GGML_TYPES[kind].values * share for kind, share in of_types.items()
        ),
        kv_bits=sum(FORMATS[kind].bits_per_value(width) for kind in (kv.k, kv.v)) / 2,
        shares=of_types,
        perplexity=math.exp(loss.mean()),
        loss_change=Estimate.over(change),
        divergence=Estimate.over(divergence),
        same_top=Estimate.over(same),
        tau=tau,
        differing=differing,
    )


def as_row(quality: Quality, prompts: int) -> list[str]:
    """Cells of the table."""
    leads = [f"{each['relative_margin']:.1e}{'' if each['near_tie'] else '!'}" for each in quality.differing]
    equal = f"{prompts - len(leads)} of {prompts}" + (f": {', '.join(leads)}" if leads else "")
    k_v = quality.k if quality.k == quality.v else f"{quality.k} / {quality.v}"
    return [
        f"{quality.weights} ({types})" if (types := _told(quality)) else quality.weights,
        k_v,
        f"{quality.weight_bits:.3g}",
        f"{quality.kv_bits:.3g}",
        f"{quality.perplexity:.2f}",
        quality.loss_change.scaled(100),
        quality.divergence.scaled(1000),
        f"{quality.same_top.mean:.1%}",
        f"{quality.tau.mean:.2f}",
        equal,
    ]


def _told(quality: Quality) -> str:
    """The shares of types, unless there is but the one that was asked for."""
    if list(quality.shares) == [quality.weights]:
        return ""
    return ", ".join(f"{kind} {share:.0%}" for kind, share in quality.shares.items())


def plot(results: list[Quality], path: Path) -> None:
    """The divergence by bits, of weights and of caches, each with the other part in float32."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, part, bits, exact in zip(
        panels, ("weights", "KV caches"), ("weight_bits", "kv_bits"), ("kv_bits", "weight_bits"), strict=True
    ):
        for each in results:
            if getattr(each, exact) == 32 and getattr(each, bits) < 32:
                name = each.weights if part == "weights" else f"{each.k}/{each.v}" if each.k != each.v else each.k
                point = getattr(each, bits), each.divergence.mean
                axes.errorbar(*point, yerr=each.divergence.error, fmt="o", markersize=4)
                axes.annotate(name, point, textcoords="offset points", xytext=(4, 4), fontsize=8)
        axes.set_yscale("log")
        axes.set_xlabel(f"bits per value of the {part}")
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("KL divergence from float32 (nats per token)")
    FigureCanvasAgg(figure).print_png(path)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", type=Setting.parse, help="see above (default: all types, some mixtures)")
    parser.add_argument("--model", type=Path, help="GGUF file or safetensors folder (default: the bundled model)")
    parser.add_argument("--packed", choices=("a8", "a16"), default="a16", help="to what the other factors are rounded")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--length", type=int, default=512, help="tokens of a window")
    parser.add_argument("--draft", type=int, default=3, help="draft tokens per round")
    parser.add_argument("--max-tokens", type=int, default=128, help="that continue each prompt")
    parser.add_argument("--json", type=Path, help="write the figures, too")
    parser.add_argument("--plot", type=Path, help="write the divergence by bits as a PNG, too; needs matplotlib")
    args = parser.parse_args()
    settings = args.settings or [Setting.parse(text) for text in DEFAULT]
    console = Console(stderr=True)

    source = bundled_model() if args.model is None else args.model
    original = specjax.load(source, packed=None)
    windows = held_out_windows(original, args.windows, args.length)
    batches = np.array_split(windows, -(-len(windows) // WINDOWS_AT_ONCE))
    exact = [log_probabilities(original.target, target_params(original), some, KVTypes()) for some in batches]
    prompts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines() if line]
    options = specjax.GenerateOptions(max_tokens=args.max_tokens, draft=args.draft, ignore_eos=True)
    about = {"model": source.name, "machine": description(), "packed": args.packed, "windows": windows.shape}
    results: list[Quality] = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in track(settings, "settings", console=console):
            model, of_types = load(source, setting.weights, args.packed, Path(folder))
            results.append(measure(model, setting, of_types, batches, exact, prompts, options))
            console.print(" | ".join(as_row(results[-1], len(prompts))), soft_wrap=True)
            if args.json is not None:
                rows = [asdict(each) for each in results]
                args.json.write_text(json.dumps({**about, "settings": rows}, indent=1) + "\n")

    table = Table(
        *("weights", "K / V", "bits", "KV bits", "perplexity", "change, %", "KL, 1e-3", "same top", "tau", "as plain"),
        title=description(),
    )
    for each in results:
        table.add_row(*as_row(each, len(prompts)))
    Console(width=160).print(table)
    print(
        f"{source.name}; {len(windows)} windows of {args.length} tokens; {len(prompts)} prompts,"
        f" {args.max_tokens} tokens each, K = {args.draft}; {args.packed};"
        f" heads of {original.config.head_width} values; native kernels: {native.reason() or native.instruction_set()}"
    )
    if args.plot is not None:
        plot(results, args.plot)
    return 1 if any(not each["near_tie"] for result in results for each in result.differing) else 0


if __name__ == "__main__":
    sys.exit(main())
