"""Gemma 4 and its assistants in files and in memory."""

from __future__ import annotations

from specjax.models.gemma4 import assistant_files, drafter, gguf, hf
from specjax.models.gemma4.assistant_config import Gemma4AssistantConfig
from specjax.models.gemma4.config import Gemma4Config
from specjax.models.gemma4.target import Gemma4Target
from specjax.models.parts.family import ModelFamily
from specjax.models.parts.value_checks import TOKEN_ORDERING

FAMILY = ModelFamily(config_type=Gemma4Config, role="target", gguf=gguf.GGUF, hf=hf.HF, target=Gemma4Target)

ASSISTANT = ModelFamily(
    config_type=Gemma4AssistantConfig,
    role="assistant",
    gguf=assistant_files.GGUF,
    hf=assistant_files.HF,
    check_tables=assistant_files.check_centroids,
    value_checks=(TOKEN_ORDERING,),
    file_drafter=drafter.from_file,
)
