"""What rows of a batch want, said shortly."""

from __future__ import annotations

from typing import Any

from jax import Array

from specjax.decoding.draft_control import effective_drafts, wanted_drafts
from specjax.decoding.settings import DraftConfig, RowSettings, SamplerConfig, Settings

GREEDY = SamplerConfig()


def alike(batch: int, sampler: SamplerConfig = GREEDY, **wants: Any) -> RowSettings:
    """Rows that all want the same; the keywords are fields of `Settings`."""
    return RowSettings.of([Settings(sampler, **wants)] * batch)


def drafting(batch: int, **draft: Any) -> RowSettings:
    """Rows that are alike in how they draft; the keywords are fields of `DraftConfig`."""
    return alike(batch, draft=DraftConfig(**draft))


def lengths_of(confidence: Array, draft: DraftConfig, budget: Array, skipping: Array) -> Array:
    """The drafts that rows with one draft length control verify."""
    settings = alike(len(budget), draft=draft)
    return effective_drafts(confidence, settings, wanted_drafts(settings, budget, skipping))
