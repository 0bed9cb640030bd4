"""The models of tests/fixtures, loaded once, and comparing and changing their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tiny_checkpoints import assert_same

import checkpoints
from checkpoints import Checkpoint
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures"


@cache
def load(name: str, file: str) -> Checkpoint:
    """A model like "glm4_moe/air" from "hf" or "model.gguf"."""
    return checkpoints.load(FIXTURES / name / file, FAMILIES)


def assert_same_model(got: Checkpoint, want: Checkpoint) -> None:
    """Both have equal configs, and parameters that differ by rounding at most."""
    assert got.config == want.config
    assert_same(got.params, want.params, rtol=1e-6)


def with_config(name: str, folder: Path, change: Mapping[str, Any]) -> Path:
    """Make a Hugging Face folder of the model with other values in config.json; it has no tokenizer."""
    source = FIXTURES / name / "hf"
    for weights in source.glob("model*"):
        (folder / weights.name).symlink_to(weights)
    document = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**document, **change}))
    return folder
