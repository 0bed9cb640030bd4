"""Whatever is wrong with a file is said, completely and in the terms of the file."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import edit_gguf, make_config, make_params, make_tokenizer, write_tiny_gguf

import checkpoints
from checkpoints import (
    CheckpointError,
    ConfigError,
    FormatError,
    MissingMTPWarning,
    TensorMismatchError,
    TokenizerError,
    UnknownArchitectureError,
)
from checkpoints.convert import prepare
from checkpoints.tokenizers import hf as tokenizer_hf
from checkpoints.verifier import verify
from specjax.models.registry import FAMILIES


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("good") / "good.gguf", make_config())


@pytest.fixture
def hf(tmp_path: Path) -> Path:
    config = make_config()
    checkpoints.write_hf(tmp_path / "hf", FAMILIES, config, make_params(config), make_tokenizer())
    return tmp_path / "hf"


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such file"):
        checkpoints.load(tmp_path / "nothing.gguf", FAMILIES)


@pytest.mark.parametrize("dtype", ["float31", "int8", "float64", None, 7])
def test_matrices_are_floats_of_16_or_32_bits(dtype: Any, good: Path) -> None:
    with pytest.raises(CheckpointError, match=f"dtype is {dtype!r}; matrices can be loaded as float32, bfloat16"):
        checkpoints.load(good, FAMILIES, dtype)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 something else"])
def test_not_a_gguf(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not a GGUF"):
        checkpoints.load(path, FAMILIES)


def test_a_file_cut_anywhere_is_called_truncated(good: Path, tmp_path: Path) -> None:
    content = good.read_bytes()
    path = tmp_path / "model.gguf"
    header_end = gguf.GGUFReader(good).data_offset
    cuts = [4, 7, 8, 15, 23, 24, 31, *range(100, header_end, header_end // 50), header_end - 1, header_end]
    cuts += [*range(header_end, len(content), len(content) // 10), len(content) - 1]
    for cut in cuts:
        path.write_bytes(content[:cut])
        with pytest.raises(FormatError, match=r"truncated.*(the file ends at byte|but the file has)") as raised:
            checkpoints.load(path, FAMILIES)
        assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("offset", "field", "message"),
    [
        (4, struct.pack("<I", 1), "GGUF version 1"),
        (4, struct.pack(">I", 3), "big-endian"),
        (8, struct.pack("<Q", 2**60), "truncated|unknown|not UTF-8"),
        (16, struct.pack("<Q", 2**60), "truncated|unknown|not UTF-8"),
        (24, struct.pack("<Q", 2**63), "truncated"),
    ],
)
def test_absurd_headers_are_refused(offset: int, field: bytes, message: str, good: Path, tmp_path: Path) -> None:
    content = bytearray(good.read_bytes())
    content[offset : offset + len(field)] = field
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=message):
        checkpoints.load(path, FAMILIES)


def test_unknown_architecture_names_the_known_ones(good: Path, tmp_path: Path) -> None:
    path = edit_gguf(good, tmp_path / "model.gguf", keys={"general.architecture": "mamba"})
    with pytest.raises(UnknownArchitectureError, match=r"'mamba' is not known; known are .*qwen35, qwen35moe"):
        checkpoints.load(path, FAMILIES)


def test_all_absent_keys_are_listed(good: Path, tmp_path: Path) -> None:
    dropped = ["qwen35.block_count", "qwen35.ssm.inner_size", "qwen35.rope.dimension_sections"]
    path = edit_gguf(good, tmp_path / "model.gguf", drop_keys=dropped)
    with pytest.raises(ConfigError) as raised:
        checkpoints.load(path, FAMILIES)
    assert all(key in str(raised.value) for key in dropped)


def test_contradictory_metadata_are_refused(good: Path, tmp_path: Path) -> None:
    path = edit_gguf(good, tmp_path / "model.gguf", keys={"qwen35.rope.scaling.type": "yarn"})
    with pytest.raises(ConfigError, match="rope scaling 'yarn'"):
        checkpoints.load(path, FAMILIES)
    path = edit_gguf(good, tmp_path / "model.gguf", keys={"qwen35.block_count": "four"})
    with pytest.raises(ConfigError, match="describe no model"):
        checkpoints.load(path, FAMILIES)


def test_all_mismatched_tensors_are_listed_at_once(good: Path, tmp_path: Path) -> None:
    missing = ("blk.0.ssm_a", "output_norm.weight", "blk.3.nextn.enorm.weight")
    surplus = {"blk.0.attn_q.bias": np.zeros(8, np.float32), "strange.weight": np.zeros((2, 2), np.float32)}
    wrong_shape = np.zeros((64, 32), np.float32), GGMLQuantizationType.F32
    wrong_type = np.zeros((96, 64), np.int32), GGMLQuantizationType.I32
    path = edit_gguf(
        good,
        tmp_path / "model.gguf",
        drop=missing,
        add=surplus,
        retype={"blk.2.attn_k.weight": wrong_shape, "blk.1.ffn_up.weight": wrong_type},
    )
    with pytest.raises(TensorMismatchError) as raised:
        checkpoints.load(path, FAMILIES)
    error = raised.value
    assert [name.split()[0] for name in error.missing] == list(missing)
    assert [name.split()[0] for name in error.surplus] == list(surplus)
    assert error.misshapen == ("blk.2.attn_k.weight: expected (32, 64), got (64, 32)",)
    assert error.unsupported == ("blk.1.ffn_up.weight: I32",)
    assert all(line in str(error) for line in (*error.missing, *error.surplus, *error.misshapen, *error.unsupported))
    assert checkpoints.describe(path, FAMILIES).problems == str(error)


def test_a_declared_head_that_is_absent_is_said_aloud(good: Path, tmp_path: Path) -> None:
    head = [tensor.name for tensor in gguf.GGUFReader(good).tensors if tensor.name.startswith("blk.3.")]
    path = edit_gguf(good, tmp_path / "model.gguf", drop=head)
    with pytest.warns(MissingMTPWarning, match=r"none of its tensors \(blk.3"):
        loaded = checkpoints.load(path, FAMILIES)
    assert loaded.config == make_config(mtp_layers=0)
    assert loaded.params.keys() == {"target"}
    with pytest.warns(MissingMTPWarning):
        assert not checkpoints.describe(path, FAMILIES).has_mtp


def test_a_head_that_is_partly_there_is_an_error(good: Path, tmp_path: Path) -> None:
    gone = ["blk.3.nextn.eh_proj.weight", "blk.3.attn_q.weight"]
    path = edit_gguf(good, tmp_path / "model.gguf", drop=gone)
    with pytest.raises(TensorMismatchError) as raised:
        checkpoints.load(path, FAMILIES)
    assert {name.split()[0] for name in raised.value.missing} == set(gone)


def test_an_undeclared_head_is_surplus(good: Path, tmp_path: Path) -> None:
    path = edit_gguf(good, tmp_path / "model.gguf", drop_keys=["qwen35.nextn_predict_layers"])
    with pytest.raises(TensorMismatchError) as raised:
        checkpoints.load(path, FAMILIES)
    assert {name.split(" ")[0].split(".nextn.")[1] for name in raised.value.surplus} == {
        "eh_proj.weight",
        "enorm.weight",
        "hnorm.weight",
        "shared_head_norm.weight",
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"drop_keys": ["tokenizer.ggml.model"]}, "no tokenizer"),
        ({"drop_keys": ["tokenizer.ggml.tokens"]}, "no tokenizer"),
        ({"drop_keys": ["tokenizer.ggml.merges"]}, "lacks tokenizer.ggml.merges"),
        ({"drop_keys": ["tokenizer.ggml.pre"]}, "known are qwen2, qwen35"),
        ({"keys": {"tokenizer.ggml.pre": "falcon"}}, "'falcon' is not known; known are qwen2, qwen35, llama-bpe"),
        ({"keys": {"tokenizer.ggml.model": "t5"}}, "'t5' is not known; known are gpt2"),
        ({"keys": {"tokenizer.ggml.bos_token_id": "1"}}, "bos_token_id is '1'; it must be a whole number"),
        ({"keys": {"tokenizer.ggml.eos_token_id": float("inf")}}, "eos_token_id is 'inf'; it must be a whole number"),
        ({"keys": {"tokenizer.ggml.eot_token_id": [1, 2]}}, "eot_token_id is '.1, 2.'; it must be a whole number"),
        ({"keys": {"tokenizer.ggml.tokens": 3}}, "tokens is '3'; it must be a list of texts"),
        ({"keys": {"tokenizer.ggml.tokens": [3]}}, "tokens is '.3.'; it must be a list of texts"),
        ({"keys": {"tokenizer.ggml.token_type": 3}}, "token_type is '3'; it must be a list of whole numbers"),
        ({"keys": {"tokenizer.ggml.merges": [3]}}, "merges is '.3.'; it must be a list of texts"),
        ({"keys": {"tokenizer.chat_template": 3}}, "chat_template is '3'; it must be a text"),
        ({"keys": {"specjax.leading_token_ids": 3}}, "leading_token_ids is '3'; it must be a list of whole numbers"),
    ],
)
def test_unusable_tokenizers(changes: dict[str, Any], message: str, good: Path, tmp_path: Path) -> None:
    path = edit_gguf(good, tmp_path / "model.gguf", **changes)
    with pytest.raises(TokenizerError, match=message):
        checkpoints.load(path, FAMILIES)
    assert checkpoints.load(path, FAMILIES, need_tokenizer=False).tokenizer is None
    assert checkpoints.describe(path, FAMILIES).vocab_size is None


def test_a_missing_part_of_a_split_file(good: Path, tmp_path: Path) -> None:
    edit_gguf(good, tmp_path / "split.gguf", tensors_per_part=30)
    first, second, *_ = sorted(tmp_path.glob("split-*.gguf"))
    second.unlink()
    with pytest.raises(FormatError, match=f"{second.name}: no such file"):
        checkpoints.load(first, FAMILIES)
    first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(FormatError, match="one of 2 parts"):
        checkpoints.load(tmp_path / "renamed.gguf", FAMILIES)


@pytest.mark.parametrize("key", ["split.count", "split.tensors.count"])
@pytest.mark.parametrize("value", ["2", float("inf")])
def test_numbers_of_parts_are_numbers(key: str, value: Any, good: Path, tmp_path: Path) -> None:
    path = edit_gguf(good, tmp_path / "model.gguf", keys={key: value})
    with pytest.raises(FormatError, match=f"{key} is '{value}'; it must be a whole number"):
        checkpoints.load(path, FAMILIES)


def test_a_file_type_that_is_no_number_is_a_note(good: Path, tmp_path: Path) -> None:
    path = edit_gguf(good, tmp_path / "model.gguf", keys={"general.file_type": [1, 2]})
    report = verify(path, FAMILIES, fast=True)
    assert not report.errors
    assert "general.file_type is '[1, 2]'; it must be a whole number" in report.findings[0].what


def _remove(name: str) -> Callable[[Path], None]:
    return lambda directory: (directory / name).unlink()


def _cut(directory: Path) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _write(name: str, content: bytes) -> Callable[[Path], None]:
    def write(directory: Path) -> None:
        (directory / name).write_bytes(content)

    return write


def _set(**keys: Any) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        document = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(document | keys))

    return edit


def _edit_tokenizer(vocab: dict[str, int] | None = None, **settings: str) -> Callable[[Path], None]:
    def edit(directory: Path) -> None:
        document = json.loads((directory / "tokenizer.json").read_text())
        document["model"] |= settings
        document["model"]["vocab"] |= vocab or {}
        (directory / "tokenizer.json").write_text(json.dumps(document))

    return edit


@pytest.mark.parametrize(
    ("damage", "kind", "message"),
    [
        (_remove("config.json"), FormatError, "no config.json"),
        (_remove("model.safetensors"), FormatError, "missing model.safetensors"),
        (_remove("tokenizer.json"), TokenizerError, "no tokenizer.json"),
        (_cut, FormatError, "truncated"),
        (_write("config.json", b'{"model_type": '), FormatError, r"config\.json: not JSON"),
        (_write("config.json", b'{"a": "\xff"}'), FormatError, r"config\.json: not JSON: 'utf-8' codec"),
        (_write("model.safetensors.index.json", b"[]"), FormatError, "not a JSON object"),
        (_write("model.safetensors.index.json", b'{"weight_map": null}'), FormatError, "no weight_map"),
        (_write("tokenizer_config.json", b"{"), TokenizerError, r"tokenizer_config\.json: not JSON"),
        (_write("generation_config.json", b"3"), TokenizerError, r"generation_config\.json: not a JSON object"),
        (_write("generation_config.json", b'{"eos_token_id": "x"}'), TokenizerError, "eos_token_id is 'x'"),
        (_write("config.json", b"[" * 100_000), FormatError, r"config\.json: not JSON: maximum recursion"),
        (_write("tokenizer.json", b'{"a":' * 100_000), TokenizerError, r"tokenizer\.json: not JSON: maximum recursion"),
        (_write("tokenizer_config.json", rb'{"eos_token": "\ud800"}'), TokenizerError, "surrogates not allowed"),
        (_edit_tokenizer(vocab={"def": 4294967290}), TokenizerError, "has the id 4294967290, and no vocabulary"),
        (
            _edit_tokenizer(continuing_subword_prefix="##"),
            TokenizerError,
            "continuing_subword_prefix is '##'; only BPE",
        ),
        (_edit_tokenizer(end_of_word_suffix="</w>"), TokenizerError, "end_of_word_suffix is '</w>'; only BPE"),
        (_set(model_type="mamba"), UnknownArchitectureError, "'mamba' is not known; known are .*qwen3_5,"),
        (_set(hidden_size=None, vocab_size=None), ConfigError, "lacks vocab_size, hidden_size"),
        (_set(rope_parameters={"rope_type": "yarn"}), ConfigError, "'yarn' is not supported"),
        (_set(mtp_num_hidden_layers=3), ConfigError, "at most one"),
        (_set(num_hidden_layers=7), ConfigError, "layer_types has 3 entries"),
    ],
)
def test_damaged_directories(damage: Callable[[Path], None], kind: type[Exception], message: str, hf: Path) -> None:
    damage(hf)
    with pytest.raises(kind, match=message):
        checkpoints.load(hf, FAMILIES)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer_config.json", b"{"),
        ("generation_config.json", b"[]"),
        ("generation_config.json", b'{"eos_token_id": "x"}'),
        ("chat_template.jinja", b"\xff"),
    ],
)
def test_a_damaged_tokenizer_is_an_error_for_verify_and_named_by_convert(
    name: str, content: bytes, hf: Path, tmp_path: Path
) -> None:
    (hf / name).write_bytes(content)
    assert [name in finding.what for finding in verify(hf, FAMILIES, fast=True).errors] == [True]
    with pytest.raises(CheckpointError, match=f"{name}: .*A GGUF needs a tokenizer; give --tokenizer"):
        prepare(hf, tmp_path / "out.gguf", FAMILIES)


def test_a_model_without_a_tokenizer_is_well(hf: Path, tmp_path: Path) -> None:
    (hf / "tokenizer.json").unlink()
    assert not verify(hf, FAMILIES, fast=True).errors
    with pytest.raises(CheckpointError, match=r"there is no tokenizer\.json\. A GGUF needs a tokenizer"):
        prepare(hf, tmp_path / "out.gguf", FAMILIES)


def test_a_panic_of_the_tokenizers_library_is_an_error_like_others(hf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """So called, and so derived, are those of the bindings."""

    def panic(_: str) -> None:
        raise PanicException("slice index starts at 1 but ends at 0")

    monkeypatch.setattr(tokenizer_hf, "Tokenizer", type("Tokenizer", (), {"from_file": staticmethod(panic)}))
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: slice index starts at 1"):
        checkpoints.load(hf, FAMILIES)


def test_characters_outside_the_basic_plane_may_be_escaped(hf: Path) -> None:
    settings = hf / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"chat_template": "\U0001f600"}))
    assert r"\ud83d\ude00" in settings.read_text()
    loaded = checkpoints.load(hf, FAMILIES)
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.vocabulary.chat_template == "\U0001f600"


def test_an_empty_text_config_is_none(hf: Path) -> None:
    _set(text_config=None)(hf)
    loaded = checkpoints.load(hf, FAMILIES)
    assert loaded.config == make_config()
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.eos_ids == make_tokenizer().eos_ids


def test_all_mismatched_tensors_of_a_directory_are_listed_at_once(hf: Path) -> None:
    tensors = load_file(hf / "model.safetensors")
    del tensors["model.norm.weight"], tensors["mtp.fc.weight"]
    save_file(tensors | {"model.extra.weight": np.zeros(3, np.float32)}, hf / "model.safetensors")
    with pytest.raises(TensorMismatchError) as raised:
        checkpoints.load(hf, FAMILIES)
    assert [name.split()[0] for name in raised.value.missing] == ["model.norm.weight", "mtp.fc.weight"]
    assert raised.value.surplus == ("model.extra.weight (3,)",)


def test_a_directory_without_its_declared_head_loads_the_trunk(hf: Path) -> None:
    tensors = load_file(hf / "model.safetensors")
    trunk = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    save_file(trunk, hf / "model.safetensors")
    with pytest.warns(MissingMTPWarning, match=r"none of its tensors \(mtp"):
        loaded = checkpoints.load(hf, FAMILIES)
    assert loaded.params.keys() == {"target"}


def test_wrong_parameters_are_not_written(tmp_path: Path) -> None:
    config, params = make_config(), make_params(make_config(moe=True))
    with pytest.raises(TensorMismatchError, match=r"target\.layers_0\.mlp\.gate_proj\.weight"):
        checkpoints.write_gguf(tmp_path / "model.gguf", FAMILIES, config, params, make_tokenizer())
    with pytest.raises(CheckpointError, match="'Q3_K' weights; known are F32, F16, BF16, Q8_0"):
        checkpoints.write_gguf(tmp_path / "m", FAMILIES, config, params, make_tokenizer(), weights="Q3_K")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
