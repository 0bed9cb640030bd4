"""The families that can be trained."""

from __future__ import annotations

from specjax.training.families import gemma4, qwen3_5, step3_5
from specjax.training.families.base import Family, TrainingConfig

FAMILIES = {family.name: family for family in (qwen3_5.FAMILY, gemma4.FAMILY, step3_5.FAMILY)}


def family_of(config: TrainingConfig) -> Family:
    """The family that a config belongs to."""
    return next(family for family in FAMILIES.values() if isinstance(config, family.config_type))
