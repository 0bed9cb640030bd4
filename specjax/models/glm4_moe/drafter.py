"""The MTP head of GLM-4.5: one sparse layer, which goes on from its own hidden states."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.glm4_moe.target import Glm4MoeTarget
from specjax.models.parts.mtp import RepeatedHead


@dataclass(frozen=True)
class Glm4MoeMTP(RepeatedHead):
    """See `RepeatedHead`. The layer is a sparse one."""

    config: Glm4MoeConfig
    target_type = Glm4MoeTarget
    kind = True
