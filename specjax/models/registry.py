"""The model families: the only list of them, and which target and drafter belong to a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checkpoints.family import Families
from specjax.models import dense, gemma4, qwen3_5, step3_5
from specjax.models.dense import DenseConfig, DenseTarget
from specjax.models.gemma4 import (
    Gemma4Assistant,
    Gemma4AssistantConfig,
    Gemma4Config,
    Gemma4Target,
    check_fit,
)
from specjax.models.protocol import Drafter, Target
from specjax.models.qwen3_5 import Qwen35Config, Qwen35MTP, Qwen35Target
from specjax.models.step3_5 import Step35Config, Step35MTP, Step35Target

FAMILIES = Families((dense.FAMILY, gemma4.FAMILY, gemma4.ASSISTANT, qwen3_5.FAMILY, step3_5.FAMILY))
"""Every family that can be read and written."""

_BUILDERS: dict[type, Callable[[Any], tuple[Target, Drafter | None]]] = {
    DenseConfig: lambda config: (DenseTarget(config), None),
    Gemma4Config: lambda config: (Gemma4Target(config), None),
    Qwen35Config: lambda config: (Qwen35Target(config), Qwen35MTP(config) if config.mtp_layers else None),
    Step35Config: lambda config: (Step35Target(config), Step35MTP(config) if config.mtp_layers else None),
}


def is_assistant(config: Any) -> bool:
    """Whether a config describes a drafter that is made for one target and is nothing without it."""
    return isinstance(config, Gemma4AssistantConfig)


def assistant(target_config: Any, config: Any) -> Drafter:
    """The drafter of an assistant's config.

    Raises:
        ValueError: it was not made for such a target; every mismatch is listed.
    """
    check_fit(target_config, config)
    return Gemma4Assistant(target_config, config)


def build(config: Any) -> tuple[Target, Drafter | None]:
    """The target of a config, and the drafter that comes in the same file, if any."""
    return _BUILDERS[type(config)](config)
