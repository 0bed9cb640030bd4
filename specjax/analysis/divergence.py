"""Where two decodings differ that should be equal, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from pallas_kernels.matmul import Activations, QTensor
from specjax.decoding.leaning import offset_after
from specjax.decoding.random import Purpose, gumbel_at, key_at
from specjax.decoding.sampling import warp
from specjax.decoding.settings import RowSettings, SamplerConfig, Settings
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions
from specjax.state import KVTypes

TOLERANCE = 1e-3
"""A margin below this share of the largest logit is a near-tie in float32, whose products a GPU may round to TF32."""

KV_TOLERANCE = {
    "f32": 0, "f16": 2**-10, "bf16": 2**-7, "q8_0": 2**-8, "q4_0": 2**-5,
    "turbo2": 2**-4, "turbo3": 2**-4, "turbo4": 2**-4,
}  # fmt: skip
"""The same for caches of a type. Rounding takes a value over the edge of a code now and then, and the code changes by a
step. In 2048 tokens of held-out text, verified by the bundled model in windows of 2, 4 and 8 instead of one by one, the
margin of the best two moved by at most 0.0003 (f16), 0.0014 (bf16), 0.0016 (q8_0), 0.015 (q4_0), 0.035 (turbo2), 0.015
(turbo3) and 0.028 (turbo4) of the largest logit; in 99 % of rows by a third of that or less."""

ACT_TOLERANCE = {"a16": 0, "a8": 2**-5}
"""The same where quantized matrices are multiplied with rounded activations. One that lies at the edge of two codes
falls to either side, and rounding in the layers behind differs from there on. Measured as above, with Q8_0 and Q4_K_M:
at most 0.015 of the largest logit at 8 bits (99 % of rows: 0.006), and 0.00006 at 16."""


@dataclass(frozen=True)
class Divergence:
    """The first difference of two continuations of one prompt.

    Attributes:
        position: index among the generated tokens.
        tokens: what each of them has there.
        margin: how far apart the logits of the two tokens are (with sampling: the logits plus the position's noise,
            which is what decides); or, if that is more, how far a token is from passing top-k, top-p and min-p.
        relative_margin: the margin over the largest absolute logit.
        tolerance: the largest relative margin that rounding explains.
        filtered: whether top-k, top-p or min-p exclude one of the tokens.
    """

    position: int
    tokens: tuple[int, int]
    margin: float
    relative_margin: float
    tolerance: float
    filtered: bool = False

    @property
    def near_tie(self) -> bool:
        """Whether the two tokens tie within rounding."""
        return self.relative_margin < self.tolerance

    def __str__(self) -> str:
        kind = "a near-tie" if self.near_tie else "NOT a near-tie"
        what = "one is filtered out, by a logit of" if self.filtered else "their logits differ by"
        return (
            f"token {self.position} is {self.tokens[0]} here and {self.tokens[1]} there; {what}"
            f" {self.margin:.3g} ({self.relative_margin:.2g} of the largest logit): {kind} (limit {self.tolerance:.2g})"
        )


def tolerance_of(dtype: str, kv_types: KVTypes, acts: Collection[Activations] = ()) -> float:
    """The relative margin up to which two tokens tie: `TOLERANCE`, or the spacing of the coarsest dtype at 1.

    `acts` are the roundings of activations that quantized matrices ask for.

    Logits are float32 at every dtype: nothing rounds them. They inherit the rounding of the hidden state, which is
    random from element to element, and a logit is a sum over all of them: its error is a share of the logits' standard
    deviation, of which the largest logit is several. In 3400 rows of the bundled model, verified in windows of 2, 4 and
    8 tokens instead of one by one, the margin of the best two moved by at most 0.6 of bfloat16's spacing (99 % of rows:
    0.3), and by 6e-7 in float32.
    """
    spacing = float(jnp.finfo(dtype).eps)
    return max(
        TOLERANCE, spacing, KV_TOLERANCE[kv_types.k], KV_TOLERANCE[kv_types.v], *(ACT_TOLERANCE[act] for act in acts)
    )


def find_divergence(
    model: Model,
    prompt: Sequence[int],
    options: GenerateOptions,
    here: Sequence[int],
    there: Sequence[int],
    *,
    sequence: int = 0,
) -> Divergence | None:
    """Compare two continuations of `prompt` that were made with greedy decoding or with the same noise.

    `sequence` names the random stream: a prompt's index in its batch. Returns None when the continuations are equal.
    Otherwise the logits of the first difference are computed once more.
    """
    pairs = enumerate(zip_longest(here, there, fillvalue=-1))
    position, tokens = next(((index, pair) for index, pair in pairs if pair[0] != pair[1]), (0, None))
    if tokens is None:
        return None
    margin = relative = float("inf")
    filtered = False
    if min(tokens) >= 0:
        prefix = [*prompt, *here[:position]]
        logits = model.next_logits(prefix, kv_types=options.kv_types)
        largest, grammar = float(np.abs(logits).max()), model.grammar(options)
        if options.leaning:
            logits = logits + offset_after(options.leaning, here[:position], len(logits))
        if grammar is not None:
            logits = np.where(grammar.allowed(grammar.after(here[:position])), logits, -np.inf)
        margin, filtered = margin_between(logits, tokens, options, sequence, len(prefix))
        relative = margin / largest
    tolerance = tolerance_of_model(model, options.kv_types)
    return Divergence(position, tokens, margin, relative, tolerance, filtered)


def tolerance_of_model(model: Model, kv_types: KVTypes) -> float:
    """The relative margin up to which two tokens of a model tie, see `tolerance_of`."""
    target = model.params["target"]
    packed = [leaf for leaf in jax.tree.leaves(target, is_leaf=_is_packed) if _is_packed(leaf)]
    embedding = target["embed"]["weight"]
    dtype = "float32" if _is_packed(embedding) else str(embedding.dtype)  # that of the hidden state
    return tolerance_of(dtype, kv_types, {leaf.act for leaf in packed})


def margin_between(
    logits: Float[np.ndarray, "V"], tokens: tuple[int, int], options: GenerateOptions, sequence: int, position: int
) -> tuple[float, bool]:
    """How far two tokens are from a tie, see `Divergence.margin`, and whether one of them is filtered out.

    Args:
        logits: of the place.
        tokens: greedy decoding, or the same noise, should have decided between them.
        options: how it decides.
        sequence, position: key the noise.
    """
    if options.sampler.greedy:
        return float(abs(logits[tokens[0]] - logits[tokens[1]])), False
    return _sampled_margin(logits, tokens, options, sequence, position)


def _sampled_margin(
    logits: np.ndarray, tokens: tuple[int, int], options: GenerateOptions, sequence: int, position: int
) -> tuple[float, bool]:
    """The margin of two tokens that the same noise should have decided between, and whether one is filtered out."""
    candidates = np.asarray(tokens)
    key = key_at(options.seed, jnp.asarray([sequence]), jnp.asarray([position]))
    noise = gumbel_at(key, Purpose.TOKEN, jnp.asarray(candidates[None]))
    scores = logits[candidates] + options.temperature * np.asarray(noise[0])
    settings = RowSettings.of([Settings(options.sampler)])
    excluded = np.isneginf(warp(jnp.asarray(logits[None]), settings)[0, candidates])
    if not excluded.any():
        return float(abs(scores[0] - scores[1])), False
    # Where the excluded token was drawn, it came through the filters and then won: rounding must explain both.
    lead = scores[~excluded].max(initial=-np.inf) - scores[excluded].max()
    beyond = max(beyond_filters(logits, token, options.sampler) for token in candidates[excluded])
    return float(max(lead, beyond)), True


def beyond_filters(logits: Float[np.ndarray, "V"], token: int, sampler: SamplerConfig) -> float:
    """By how much, as a difference of logits, top-k, top-p and min-p exclude a token; 0 for one that they keep.

    The probability before a token in the nucleus is measured by its log-odds, which are a difference of logits of two
    sets: if every logit is off by up to e, both are off by up to 2 e.
    """
    order = np.argsort(-logits, kind="stable")
    rank, ranked = int(np.flatnonzero(order == token)[0]), logits[order].astype(np.float64)
    beyond, k = [0.0], sampler.top_k or len(ranked)
    if rank >= k:
        beyond.append(ranked[k - 1] - logits[token])
    rank, ranked = min(rank, k - 1), ranked[:k]
    if sampler.top_p < 1:
        log_mass = np.logaddexp.accumulate(ranked / sampler.temperature)
        last_kept = int(np.sum(log_mass[:-1] - log_mass[-1] < np.log(sampler.top_p)))
        if rank > last_kept:
            log_rest = np.logaddexp.reduce(ranked[rank:] / sampler.temperature)
            odds = log_mass[rank - 1] - log_rest - np.log(sampler.top_p / (1 - sampler.top_p))
            beyond.append(min(ranked[last_kept] - logits[token], sampler.temperature * odds))
    if sampler.min_p > 0:
        beyond.append(ranked[0] - logits[token] + sampler.temperature * np.log(sampler.min_p))
    return float(max(beyond))


def _is_packed(leaf: Any) -> bool:
    return isinstance(leaf, QTensor)
