"""Numbers in metadata with which nothing can be computed are refused when the file is opened."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoints import make_config, write_tiny_gguf

import checkpoints
from checkpoints import ConfigError
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.verifier import verify
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures"
ASSISTANT = FIXTURES / "gemma4/edge/assistant"


def errors(path: Path) -> str:
    return "\n".join(finding.what for finding in verify(path, FAMILIES).errors)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rope.freq_base", np.nan, "rope_theta is nan: it must be finite"),
        ("rope.freq_base", np.inf, "rope_theta is inf: it must be finite"),
        ("rope.freq_base", -1.0, "rope_theta is -1.0: it must lie between 1 and 1e+30"),
        ("rope.freq_base", 0.0, "rope_theta is 0.0: it must lie between 1 and"),
        ("rope.freq_base", 1.0, "rope_theta is 1.0: it must lie between 1 and"),
        ("rope.freq_base", 3e38, "it must lie between 1 and 1e+30"),
        ("attention.layer_norm_rms_epsilon", np.nan, "norm_eps is nan: it must be finite"),
        ("attention.layer_norm_rms_epsilon", -1.0, "norm_eps is -1.0: it must be positive"),
        ("context_length", 0, "context_length is 0: it must be positive"),
        ("expert_used_count", 0, "moe.experts_per_token is 0: it must be between 1 and the number of experts, 4"),
        ("expert_used_count", 5, "moe.experts_per_token is 5: it must be between 1 and"),
    ],
)
def test_numbers_with_which_nothing_can_be_computed_are_refused(
    key: str, value: float, message: str, tmp_path: Path
) -> None:
    """By whatever opens the file, before there are logits that are no numbers."""
    path = write_tiny_gguf(tmp_path / "bad.gguf", make_config(moe=True))
    raw, name = bytearray(path.read_bytes()), f"qwen35moe.{key}".encode()
    struct.pack_into("<f" if isinstance(value, float) else "<I", raw, raw.index(name) + len(name) + 4, value)
    path.write_bytes(raw)
    assert message in errors(path)
    with pytest.raises(ConfigError, match="bad.gguf: the metadata describe no model: .*" + re.escape(message)):
        checkpoints.load(path, FAMILIES)


def test_a_base_for_which_no_formula_can_be_sought_is_refused_before(tmp_path: Path) -> None:
    """The search for the formula behind rotary divisors fits a line through the frequencies."""
    raw = bytearray((FIXTURES / "step3_5/flash/model.gguf").read_bytes())
    name = b"step35.rope.freq_base"
    struct.pack_into("<f", raw, raw.index(name) + len(name) + 4, 3e38)
    (tmp_path / "bad.gguf").write_bytes(raw)
    with pytest.raises(ConfigError, match=r"full\.rope_theta is 3e"):
        prepare(tmp_path / "bad.gguf", tmp_path / "hf", FAMILIES, ConvertOptions("hf"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rms_norm_eps", float("nan"), "norm_eps is nan"),
        ("global_head_dim", 2147483648, "full.head_width is 2147483648: the largest tensor has"),
    ],
)
def test_so_are_those_of_a_config_json(key: str, value: float, message: str, tmp_path: Path) -> None:
    folder = shutil.copytree(ASSISTANT, tmp_path / "assistant")
    document = json.loads((folder / "config.json").read_text())
    document["text_config"][key] = value
    (folder / "config.json").write_text(json.dumps(document))
    assert message in errors(folder)
