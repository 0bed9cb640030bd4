"""The model families: the only list of them, and which target and drafter belong to a config."""

from __future__ import annotations

from typing import Any

from checkpoints.family import Families
from specjax.models import dense, gemma4, glm4_moe, qwen3_5, qwen3_next, step3_5
from specjax.models.drafters import dflash, draft_model, eagle3
from specjax.models.protocol import Drafter, FileDrafter, Target

FAMILIES = Families(
    (
        dense.FAMILY,
        dflash.FAMILY,
        eagle3.FAMILY,
        gemma4.FAMILY,
        gemma4.ASSISTANT,
        glm4_moe.FAMILY,
        qwen3_5.FAMILY,
        qwen3_next.FAMILY,
        step3_5.FAMILY,
    )
)
"""Every family that can be read, written and run."""


def is_assistant(config: Any) -> bool:
    """Whether a config describes a drafter that is nothing without a target."""
    return FAMILIES.of_config(config).role != "target"


def from_file(config: Any) -> FileDrafter:
    """How the model of a config drafts for another one: as an assistant, or as an ordinary draft model."""
    family = FAMILIES.of_config(config)
    return draft_model.from_file(build(config)[0]) if family.file_drafter is None else family.file_drafter(config)


def build(config: Any) -> tuple[Target, Drafter | None]:
    """The target of a config, and the drafter that comes in the same file, if any.

    Raises:
        ValueError: the config describes a drafter, and no target.
    """
    family = FAMILIES.of_config(config)
    if family.target is None:
        raise ValueError(f"a {type(config).__name__} describes a drafter, and no target")
    head = family.head(config) if family.head is not None and config.mtp_layers else None
    return family.target(config), head
