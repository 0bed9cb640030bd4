"""Text models are described at the top of config.json, or under `text_config` beside the towers of other modalities."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import checkpoints
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize(
    "model", ["qwen3_5/dense", "qwen3_next/a3b", "glm4_moe/air", "gemma4/dense", "step3_5/plain", "dense/qwen3"]
)
def test_an_empty_text_config_is_as_good_as_none(model: str, tmp_path: Path) -> None:
    original = FIXTURES / model / "hf"
    shutil.copytree(original, tmp_path / "hf")
    document = json.loads((original / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps(document | {"text_config": None}))
    assert checkpoints.describe(tmp_path / "hf", FAMILIES).config == checkpoints.describe(original, FAMILIES).config
