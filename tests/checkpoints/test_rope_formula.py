"""Formulas of rotary divisors are found in the numbers, or not at all."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from tiny_checkpoints import edit_gguf

import checkpoints
from checkpoints import ConfigError
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.mapping.rope_formula import Llama3Rope, find_formula
from checkpoints.safetensors.file import SafetensorsDirectory
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures"
LLAMA_3_1 = (Llama3Rope(8.0, 1.0, 4.0, 8192), 500000.0, 128)
LLAMA_3_2 = (Llama3Rope(32.0, 1.0, 4.0, 8192), 500000.0, 64)
STEP_3_5 = (Llama3Rope(2.0, 1.0, 32.0, 131072), 5000000.0, 64)
OTHER = (Llama3Rope(10.0, 1.0, 3.3, 10000), 1000000.0, 128)


def as_llama_cpp(formula: Llama3Rope, theta: float, width: int, *, single: bool) -> np.ndarray:
    """Its converters' loop over frequencies of PyTorch: in float32 for Llama, in float64 for Step-3.5."""
    number = np.float32 if single else float
    divisors = []
    for pair in range(width // 2):
        frequency = number(np.float32(1) / np.float32(theta ** (2 * pair / width)))
        length = number(2 * math.pi) * (1 / frequency) if single else 2 * math.pi / frequency
        if length < formula.original_context / formula.high_freq_factor:
            divisors.append(1.0)
        elif length > formula.original_context / formula.low_freq_factor:
            divisors.append(formula.factor)
        else:
            rotations = (1 / length) * number(formula.original_context) if single else formula.original_context / length
            smooth = (rotations - formula.low_freq_factor) / (formula.high_freq_factor - formula.low_freq_factor)
            divisors.append(1 / ((1 - smooth) / formula.factor + smooth))
    return np.array(divisors, np.float32)


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("case", [LLAMA_3_1, LLAMA_3_2, STEP_3_5, OTHER], ids=["3.1", "3.2", "step", "other"])
def test_the_formula_is_found(case: tuple[Llama3Rope, float, int], single: bool) -> None:
    formula, theta, width = case
    assert find_formula(as_llama_cpp(formula, theta, width, single=single), theta, width) == formula
    assert find_formula(np.array(formula.factors(theta, width), np.float32), theta, width) == formula


def test_numbers_that_follow_no_formula_have_none() -> None:
    formula, theta, width = LLAMA_3_1
    divisors = as_llama_cpp(formula, theta, width, single=True)
    middle = int(np.argmax((divisors > 1) & (divisors < formula.factor)))
    for index, value in ((middle, np.nextafter(divisors[middle], np.float32(9))), (0, 1.5), (0, np.nan), (-1, 7)):
        changed = divisors.copy()
        changed[index] = value
        assert find_formula(changed, theta, width) is None
    assert find_formula(np.linspace(1, 4, 64, dtype=np.float32), theta, width) is None


@pytest.mark.parametrize("name", ["dense/llama", "step3_5/flash", "gemma4/moe", "qwen3_5/dense"])
def test_a_folder_comes_out_of_a_gguf_with_its_config_and_its_bytes(name: str, tmp_path: Path) -> None:
    """Vectors, which a GGUF has in F32, come back in the type that they had."""
    source = FIXTURES / name / "hf"
    prepare(source, tmp_path / "model.gguf", FAMILIES).run()
    conversion = prepare(tmp_path / "model.gguf", tmp_path / "back", FAMILIES, ConvertOptions("hf"))
    assert not conversion.compare(conversion.run()).wrong
    before, after = SafetensorsDirectory(source), SafetensorsDirectory(tmp_path / "back")
    assert checkpoints.describe(tmp_path / "back", FAMILIES).config == checkpoints.describe(source, FAMILIES).config
    assert after.document["dtype"] == "bfloat16"
    assert after.tensors.keys() == before.tensors.keys()
    computed = {tensor for tensor in before.tensors if tensor.endswith(("A_log", "norm.weight"))}
    for tensor in before.tensors:
        if tensor in computed and before.tensors[tensor].type == "F32":
            got, want = (folder.read(tensor, np.float32) for folder in (after, before))
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=tensor)
        else:
            assert after.tensors[tensor] == before.tensors[tensor]
            np.testing.assert_array_equal(after.read_blocks(tensor), before.read_blocks(tensor), err_msg=tensor)


@pytest.mark.parametrize("name", ["dense/llama", "step3_5/flash"])
def test_files_of_llama_cpps_converter_become_folders(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name / "model.gguf"
    conversion = prepare(source, tmp_path / "hf", FAMILIES, ConvertOptions("hf"))
    assert not conversion.compare(conversion.run()).wrong
    loaded = checkpoints.load(source, FAMILIES)
    checkpoints.write_hf(tmp_path / "written", FAMILIES, loaded.config, loaded.params)
    want = checkpoints.describe(FIXTURES / name / "hf", FAMILIES).config
    assert (
        checkpoints.describe(tmp_path / "hf", FAMILIES).config
        == checkpoints.describe(tmp_path / "written", FAMILIES).config
        == want
    )


@pytest.mark.parametrize("name", ["dense/llama", "step3_5/flash"])
def test_numbers_without_a_formula_are_refused(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name / "model.gguf"
    divisors = GGUFFile(source).read("rope_freqs.weight", np.float32)
    divisors[1] *= 1.125
    kind = GGMLQuantizationType.F32
    changed = edit_gguf(source, tmp_path / "m.gguf", retype={"rope_freqs.weight": (divisors, kind)})
    with pytest.raises(ConfigError, match="convert from the original checkpoint"):
        prepare(changed, tmp_path / "hf", FAMILIES, ConvertOptions("hf"))
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]
