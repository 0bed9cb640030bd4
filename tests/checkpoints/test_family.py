"""A family is a value: files of one that this project does not have are read, written, converted and verified alike."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_checkpoints import make_config, make_tokenizer

import checkpoints
from checkpoints.convert import ConvertOptions
from checkpoints.convert import prepare as prepare_conversion
from checkpoints.errors import ConfigError, UnknownArchitectureError
from checkpoints.family import Families, Family, FileFormat, ValueCheck
from checkpoints.mapping.rule import copies
from checkpoints.mapping.table import RuleTable
from checkpoints.quantization import QuantizeOptions
from checkpoints.quantization import prepare as prepare_quantization
from checkpoints.verifier import verify
from specjax.models.registry import FAMILIES


@dataclass(frozen=True)
class ToyConfig:
    """An embedding table, and nothing else."""

    vocab_size: int
    width: int
    architecture: str = "toy"
    mtp_layers: int = 0


def _rules(tensor: str) -> Any:
    def rules(config: ToyConfig, names: Collection[str]) -> RuleTable:
        shapes = {"target.embed.weight": (config.vocab_size, config.width)}
        return RuleTable(copies({tensor: "target.embed.weight"}), {}, shapes)

    return rules


TOY = Family(
    config_type=ToyConfig,
    role="target",
    gguf=FileFormat(
        names=("toy",),
        read_config=lambda keys, tensors, where: ToyConfig(keys["toy.vocab_size"], keys["toy.width"]),
        write_config=lambda config: {"toy.vocab_size": config.vocab_size, "toy.width": config.width},
        rules=_rules("token_embd.weight"),
    ),
    hf=FileFormat(
        names=("toy_model",),
        read_config=lambda document, tensors, where: ToyConfig(document["rows"], document["columns"]),
        write_config=lambda config: {
            "model_type": "toy_model", "rows": config.vocab_size, "columns": config.width
        },
        rules=_rules("table"),
    ),
    value_checks=(ValueCheck(r"target\.embed\.weight", lambda x: "too large" if x.max() > 100 else None, "shrink it"),),
)  # fmt: skip
TOYS = Families((TOY,))
CONFIG = ToyConfig(make_tokenizer().vocab_size, 32)


def params(scale: float = 1.0) -> dict[str, Any]:
    values = scale * np.random.default_rng(0).standard_normal((CONFIG.vocab_size, CONFIG.width), np.float32)
    return {"target": {"embed": {"weight": values}}}


def test_a_family_from_elsewhere_goes_through_all_formats(tmp_path: Path) -> None:
    want = params()["target"]["embed"]["weight"]
    checkpoints.write_gguf(tmp_path / "toy.gguf", TOYS, CONFIG, params(), make_tokenizer())
    prepare_conversion(tmp_path / "toy.gguf", tmp_path / "hf", TOYS, ConvertOptions("hf")).run()
    prepare_conversion(tmp_path / "hf", tmp_path / "toy.orbax", TOYS).run()
    for name in ("toy.gguf", "hf", "toy.orbax"):
        loaded = checkpoints.load(tmp_path / name, TOYS)
        assert loaded.config == CONFIG
        np.testing.assert_array_equal(loaded.params["target"]["embed"]["weight"], want)
        assert not verify(tmp_path / name, TOYS).errors
    packed = prepare_quantization(tmp_path / "toy.gguf", tmp_path / "q.gguf", TOYS, QuantizeOptions("Q8_0")).run()
    assert checkpoints.describe(packed, TOYS).problems is None


def test_other_families_do_not_know_it(tmp_path: Path) -> None:
    checkpoints.write_gguf(tmp_path / "toy.gguf", TOYS, CONFIG, params(), make_tokenizer())
    checkpoints.write_hf(tmp_path / "hf", TOYS, CONFIG, params())
    with pytest.raises(UnknownArchitectureError, match=r"architecture 'toy' is not known; known are llama, qwen3"):
        checkpoints.load(tmp_path / "toy.gguf", FAMILIES)
    with pytest.raises(UnknownArchitectureError, match=r"model_type 'toy_model' is not known; known are llama, qwen3"):
        checkpoints.load(tmp_path / "hf", FAMILIES, need_tokenizer=False)
    with pytest.raises(UnknownArchitectureError, match=r"a Qwen35Config is the config of no known .* are ToyConfig"):
        checkpoints.write_hf(tmp_path / "other", TOYS, make_config(), {})
    assert not (tmp_path / "other").exists()


def test_its_readers_and_checks_are_asked(tmp_path: Path) -> None:
    checkpoints.write_hf(tmp_path / "hf", TOYS, CONFIG, params(scale=1000))
    (finding,) = verify(tmp_path / "hf", TOYS).errors
    assert (finding.what, finding.fix) == ("table: too large", "shrink it")
    path = tmp_path / "hf" / "config.json"
    path.write_text(path.read_text().replace('"columns"', '"rows_again"'))
    with pytest.raises(ConfigError, match=r"hf: config\.json describes no model: 'columns'; download or convert"):
        checkpoints.describe(tmp_path / "hf", TOYS)
