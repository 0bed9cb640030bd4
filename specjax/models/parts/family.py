"""What a family folder gives to the registry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checkpoints.family import Family
from specjax.models.protocol import Drafter, FileDrafter, Target


@dataclass(frozen=True, kw_only=True)
class ModelFamily(Family):
    """A family as files have it, see `Family`, and what is built of its configs.

    Attributes:
        target: config -> the model; of the role "target".
        head: config -> the drafter in the same file; None if the family has none. It is asked if `mtp_layers` is not 0.
        file_drafter: config -> how the file drafts for a target; of the other roles.
    """

    target: Callable[[Any], Target] | None = None
    head: Callable[[Any], Drafter] | None = None
    file_drafter: Callable[[Any], FileDrafter] | None = None
