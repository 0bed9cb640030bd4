"""Gemma 4 and its assistants as files have them."""

from __future__ import annotations

from checkpoints.family import Family
from specjax.models.gemma4 import assistant_files, gguf, hf
from specjax.models.gemma4.assistant_config import Gemma4AssistantConfig
from specjax.models.gemma4.config import Gemma4Config

FAMILY = Family(config_type=Gemma4Config, role="target", gguf=gguf.GGUF, hf=hf.HF)

ASSISTANT = Family(
    config_type=Gemma4AssistantConfig,
    role="assistant",
    gguf=assistant_files.GGUF,
    hf=assistant_files.HF,
    check_tables=assistant_files.check_centroids,
)
