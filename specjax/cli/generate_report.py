"""The result of `specjax generate`, as a summary for people and as one JSON object."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from specjax.analysis.profiling import RoundCost
from specjax.cli.comparison import LEAST_SECONDS, Comparison
from specjax.cli.text import console, print_rows
from specjax.decoding.decoder import Decoder, bytes_per_token
from specjax.decoding.stats import DecodeStats
from specjax.runtime.generation import Generation
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions


@dataclass
class Outcome:
    """A generation and what was measured beside it.

    Attributes:
        model, options, decoder: what ran.
        generation: what came out.
        load_seconds: reading the model.
        cost: of a round's halves, if measured.
        comparison: with plain decoding, if asked for.
    """

    model: Model
    options: GenerateOptions
    decoder: Decoder
    generation: Generation
    load_seconds: float
    cost: RoundCost | None = None
    comparison: Comparison | None = None


def as_document(outcome: Outcome) -> dict[str, Any]:
    """Plain data. `timings` are seconds; `accepted_by_position` counts rounds, position 1 first."""
    generation, stats = outcome.generation, outcome.generation.stats
    document: dict[str, Any] = {
        "model": str(outcome.model.path),
        "tokens": generation.tokens,
        "text": generation.text,
        "prompt_tokens": generation.prompt_tokens,
        "finish_reason": generation.finish_reason,
        "draft": "auto" if outcome.options.finds_depth else outcome.decoder.max_drafts,
        "rule": outcome.decoder.rule,
        "rollback": outcome.decoder.rollback,
        "kv_type_k": outcome.options.kv_type_k,
        "kv_type_v": outcome.options.kv_type_v,
        "kv_bytes_per_token": bytes_per_token(outcome.decoder),
        "seed": outcome.options.seed,
        **asdict(outcome.options.sampler),
        "rounds": stats.rounds,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "drafted_by_position": stats.drafted_by_position,
        "accepted_by_position": stats.accepted_by_position,
        "drafted_by_drafter": stats.drafted_by_drafter,
        "accepted_by_drafter": stats.accepted_by_drafter,
        "rounds_by_drafts": stats.rounds_by_drafts,
        "tokens_per_round": stats.tokens_per_round,
        "tokens_per_second": generation.tokens_per_second,
        "timings": {"load": outcome.load_seconds, **asdict(generation.timings), **_round_seconds(outcome)},
    }
    if generation.logprobs is not None:
        document["logprobs"] = [each.logprob for each in generation.logprobs]
        document["top_logprobs"] = [each.top for each in generation.logprobs]
    if outcome.comparison is not None:
        document["compare"] = _comparison_document(outcome.comparison)
    return document


def _round_seconds(outcome: Outcome) -> dict[str, float]:
    if outcome.cost is None:
        return {}
    return {"draft_per_round": outcome.cost.draft, "verify_per_round": outcome.cost.verify}


def _comparison_document(comparison: Comparison) -> dict[str, Any]:
    divergence = comparison.divergence
    document: dict[str, Any] = {
        "comparable": comparison.comparable,
        "equal": divergence is None if comparison.comparable else None,
        "divergence": None,
        "tokens": comparison.plain.tokens,
        "tokens_per_second": comparison.plain.tokens_per_second,
        "timings": asdict(comparison.plain.timings),
        "speedup": None if math.isnan(comparison.speedup) else comparison.speedup,
        "measurable": comparison.measurable,
        "bound": comparison.bound,
    }
    if comparison.plain_cost is not None:
        document["timings"]["verify_per_round"] = comparison.plain_cost.verify
    if divergence is not None:
        finite = math.isfinite(divergence.margin)
        document["divergence"] = {
            "position": divergence.position,
            "tokens": divergence.tokens,
            "margin": divergence.margin if finite else None,
            "relative_margin": divergence.relative_margin if finite else None,
            "near_tie": divergence.near_tie,
        }
    return document


def print_summary(outcome: Outcome) -> None:
    """A few lines on the standard error."""
    generation, stats, timings = outcome.generation, outcome.generation.stats, outcome.generation.timings
    reason = {
        "eos": "end of text",
        "stop": "--stop found",
        "length": "--max-tokens reached",
        "context": "the model's context is full",
    }
    rows = [
        ("tokens", f"{len(generation.tokens)} ({reason[generation.finish_reason]})"),
        ("speed", f"{generation.tokens_per_second:.1f} tokens/s"),
        ("rounds", f"{stats.rounds}, {stats.tokens_per_round:.2f} tokens per round"),
    ]
    per_token = bytes_per_token(outcome.decoder)
    rows.append(("KV caches", f"{outcome.options.kv_types}, {per_token / 1024:.2f} KiB per token"))
    if outcome.decoder.drafts:
        rows.append(("accepted", acceptance_line(stats)))
    if len(stats.drafted_by_drafter) > 1:
        rows.append(("by drafter", drafters_line(stats)))
    if outcome.options.finds_depth:
        rows.append(("drafts", rounds_line(stats)))
    if outcome.cost is not None:
        rows.append(("a round", _cost_line(outcome.cost, timings.decode / stats.rounds if stats.rounds else None)))
    rows.append(
        (
            "seconds",
            f"load {outcome.load_seconds:.2f}, compile {timings.compile:.2f}, prefill {timings.prefill:.3f},"
            f" decode {timings.decode:.3f}",
        )
    )
    if outcome.comparison is not None:
        rows += _comparison_rows(outcome.comparison)
    out = console(stderr=True)
    out.print()
    print_rows(out, rows)


def acceptance_line(stats: DecodeStats) -> str:
    """Accepted of drafted tokens, in all and by position."""
    shares = ", ".join(f"{i}: {share:.0%}" for i, share in enumerate(stats.acceptance_by_position, 1))
    return f"{stats.accepted} of {stats.drafted} drafts ({stats.acceptance:.0%}); by position {shares}"


def drafters_line(stats: DecodeStats) -> str:
    """Accepted of drafted tokens by drafter, in their order."""
    pairs = zip(stats.accepted_by_drafter, stats.drafted_by_drafter, strict=True)
    return ", ".join(f"{i}: {accepted} of {drafted}" for i, (accepted, drafted) in enumerate(pairs, 1))


def rounds_line(stats: DecodeStats) -> str:
    """How many drafts rounds had: the mean, and the share of rounds with each number."""
    counts = enumerate(stats.rounds_by_drafts)
    shares = ", ".join(f"{drafts}: {count / stats.rounds:.0%}" for drafts, count in counts if count)
    return f"{stats.drafts_per_round:.2f} a round; rounds by number {shares}"


def _cost_line(cost: RoundCost, whole: float | None) -> str:
    parts = f"draft {cost.draft * 1e3:.2f} ms, verify {cost.verify * 1e3:.2f} ms"
    return parts if whole is None else f"{whole * 1e3:.2f} ms; timed apart: {parts}"


def _comparison_rows(comparison: Comparison) -> list[tuple[str, str]]:
    bound = (
        "" if comparison.bound is None else f", bound {comparison.bound:.2f} = tau * t_decode / (t_verify + t_draft)"
    )
    speedup = f"{comparison.speedup:.2f}" + (f" ({comparison.turns} turns)" if comparison.turns > 1 else "")
    if not comparison.measurable:
        speedup = (
            f"not told: {1e3 * comparison.seconds:.0f} ms of decoding are too short to measure (more --max-tokens:"
            f" at least {LEAST_SECONDS:g} s)"
        )
    if not comparison.comparable:
        verdict = "not compared: this way of sampling keeps the distribution, not the tokens (--accept coupled does)"
    elif comparison.divergence is None:
        verdict = f"all {len(comparison.plain.tokens)} tokens equal"
    else:
        verdict = f"DIFFERENT: {comparison.divergence}"
    return [
        ("plain", f"{comparison.plain.tokens_per_second:.1f} tokens/s"),
        ("speed-up", f"{speedup}{bound}"),
        ("check", verdict),
    ]
