"""The MTP head of Qwen3.5: one block, which goes on from its own hidden states."""

from __future__ import annotations

from dataclasses import dataclass

from specjax.models.parts.mtp import RepeatedHead
from specjax.models.qwen3_5.config import FULL_ATTENTION, Qwen35Config
from specjax.models.qwen3_5.target import Qwen35Target


@dataclass(frozen=True)
class Qwen35MTP(RepeatedHead):
    """See `RepeatedHead`. The layer is one of full attention."""

    config: Qwen35Config
    target_type = Qwen35Target
    kind = FULL_ATTENTION
