"""Block drafters in files and in memory."""

from __future__ import annotations

from specjax.models.drafters.dflash.config import DFlashConfig
from specjax.models.drafters.dflash.drafter import from_file
from specjax.models.drafters.dflash.gguf import GGUF
from specjax.models.drafters.dflash.hf import HF
from specjax.models.parts.family import ModelFamily

FAMILY = ModelFamily(config_type=DFlashConfig, role="drafter", gguf=GGUF, hf=HF, file_drafter=from_file)
