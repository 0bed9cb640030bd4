"""The model families: the only list of them, and which target and drafter belong to a config."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from checkpoints.family import Families
from specjax.models import dense, gemma4, qwen3_5, step3_5
from specjax.models.dense import DenseConfig, DenseTarget
from specjax.models.drafters import draft_model
from specjax.models.gemma4 import (
    Gemma4AssistantConfig,
    Gemma4Config,
    Gemma4Target,
    assistant_from_file,
)
from specjax.models.protocol import Drafter, FileDrafter, Target
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


_ASSISTANTS: dict[type, Callable[[Any], FileDrafter]] = {Gemma4AssistantConfig: assistant_from_file}


def is_assistant(config: Any) -> bool:
    """Whether a config describes a drafter that is nothing without a target."""
    return type(config) in _ASSISTANTS


def from_file(config: Any) -> FileDrafter:
    """How the model of a config drafts for another one: as an assistant, or as an ordinary draft model."""
    assistant = _ASSISTANTS.get(type(config))
    return draft_model.from_file(build(config)[0]) if assistant is None else assistant(config)


def build(config: Any) -> tuple[Target, Drafter | None]:
    """The target of a config, and the drafter that comes in the same file, if any."""
    return _BUILDERS[type(config)](config)
