"""Whether drafts change tokens where none may change: greedy decoding, and the coupled rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specjax.analysis.divergence import find_divergence
from specjax.analysis.lossless.report import Check
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions


def check_equality(name: str, model: Model, prompts: Sequence[Sequence[int]], options: GenerateOptions) -> Check:
    """Decode prompts with drafts and without. The tokens must be equal, near-ties aside."""
    drafted = model.generate_batch(prompts, options)
    plain = model.generate_batch(prompts, replace(options, draft=0))
    faults, ties = [], 0
    for index, (prompt, ours, theirs) in enumerate(zip(prompts, drafted, plain, strict=True)):
        found = find_divergence(model, prompt, options, ours.tokens, theirs.tokens, sequence=index)
        if found is not None and found.near_tie:
            ties += 1
        elif found is not None:
            faults.append(f"prompt {index + 1}: {found}")
    tokens = sum(len(each.tokens) for each in drafted)
    accepted, offered = (sum(getattr(each.stats, kind) for each in drafted) for kind in ("accepted", "drafted"))
    return Check(
        name,
        "are the tokens those of plain decoding?",
        f"{tokens} tokens after {len(prompts)} prompts, {accepted} of {offered} drafts accepted, {ties} near-ties",
        tuple(faults),
        advice="Drafter.observe and the target's rollback: something of a rejected draft has stayed in the state",
    )
