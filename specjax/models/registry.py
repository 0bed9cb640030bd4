"""Which target and drafter belong to a config."""

from __future__ import annotations

from specjax.models.protocol import Drafter, Target
from specjax.models.qwen3_5 import Qwen35Config, Qwen35MTP, Qwen35Target


def build(config: Qwen35Config) -> tuple[Target, Drafter | None]:
    """The target of a config, and the drafter that comes in the same file, if any."""
    return Qwen35Target(config), Qwen35MTP(config) if config.mtp_layers else None
