"""Quantized files say what their source says, in the types that the mixes promise, or are not there."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from tiny_checkpoints import assert_same, edit_gguf, make_config, write_tiny_gguf

import checkpoints
from checkpoints.convert import ConvertOptions
from checkpoints.convert import prepare as prepare_conversion
from checkpoints.gguf.file import GGUFFile
from checkpoints.quantization import ENCODERS, EncodingError, QuantizeOptions, encode, prepare
from checkpoints.quantization.plan import HEAD_TYPE
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
TYPES = json.loads((FIXTURES / "quantized" / "types.json").read_text())
CHANGED_KEYS = {"general.file_type", "general.quantization_version"}


def quantize(source: Path, destination: Path, kind: str, **options: Any) -> GGUFFile:
    return GGUFFile(prepare(source, destination, FAMILIES, QuantizeOptions(kind, **options)).run())


def types_of(source: Path, kind: str, **options: Any) -> dict[str, str]:
    plan = prepare(source, Path("not-written.gguf"), FAMILIES, QuantizeOptions(kind, **options))
    return {tensor.source.name: tensor.type for tensor in plan.tensors}


@pytest.mark.parametrize("mix", TYPES)
def test_mixes_are_those_of_llama_quantize_but_for_the_head(mix: str) -> None:
    types = types_of(bundled_model(), mix)
    for name, theirs in TYPES[mix].items():
        assert types[name] == ("Q8_0" if name.startswith("blk.6.") else theirs), name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_K_M", "Q5_1", "IQ4_NL", "TQ3_1S", "F16"])
def test_all_but_the_types_of_matrices_stays(tmp_path: Path, kind: str) -> None:
    source = GGUFFile(write_tiny_gguf(tmp_path / "source.gguf", make_config(moe=True)))
    written = quantize(source.path, tmp_path / "quantized.gguf", kind)
    assert list(written.tensors) == list(source.tensors)
    assert list(written.values) == list(source.values)
    assert all(written.values[key] == value for key, value in source.values.items() if key not in CHANGED_KEYS)
    for name, tensor in written.tensors.items():
        assert tensor.shape == source.tensors[name].shape
        values = source.read(name, np.float32)
        small = values.ndim < 2 or "conv1d" in name or "ffn_gate_inp" in name or not name.endswith(".weight")
        assert (tensor.type == "F32") == small, name
        if small:
            np.testing.assert_array_equal(written.read(name, np.float32), values)
        elif tensor.type in ENCODERS:
            np.testing.assert_array_equal(written.read_blocks(name), encode(values, tensor.type))


def test_quantized_files_load_as_models(tmp_path: Path) -> None:
    """Values are those of the source, within what eight bits round."""
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    quantize(source, tmp_path / "q8.gguf", "Q8_0")
    before, after = (checkpoints.load(path, FAMILIES, packed=None) for path in (source, tmp_path / "q8.gguf"))
    assert after.config == before.config
    assert after.tokenizer is not None
    assert_same(after.params, before.params, rtol=0.01)


@pytest.mark.parametrize("fixture", ["qwen3_5/moe", "qwen3_next/a3b", "glm4_moe/large", "gemma4/moe", "step3_5/flash"])
def test_a_folder_and_the_gguf_of_the_same_model_give_the_same_tensors(tmp_path: Path, fixture: str) -> None:
    folder = FIXTURES / fixture
    ours, theirs = (quantize(folder / name, tmp_path / f"{name}.gguf", "Q4_0") for name in ("hf", "model.gguf"))
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, tensor in theirs.tensors.items():
        assert ours.tensors[name].type == tensor.type, name
        if tensor.type in ENCODERS:
            np.testing.assert_array_equal(ours.read_blocks(name), theirs.read_blocks(name))


def test_heads_and_assistants_keep_eight_bits_unless_asked_otherwise(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    types = types_of(source, "Q4_0")
    head = [name for name in types if name.startswith("blk.3.") and types[name] != "F32"]
    assert any("nextn.eh_proj" in name for name in head)
    assert {types[name] for name in head} == {HEAD_TYPE}
    assert types["blk.2.ffn_up.weight"] == "Q4_0"
    asked = types_of(source, "Q4_0", tensor_types=((r"eh_proj", "q5_0"),))
    assert asked["blk.3.nextn.eh_proj.weight"] == "Q5_0"
    assert {types_of(source, "Q4_0", pure=True)[name] for name in head} == {"Q4_0"}
    assistant = types_of(FIXTURES / "gemma4/edge/assistant.gguf", "Q4_0")
    assert {kind for name, kind in assistant.items() if name.endswith("ffn_gate.weight")} == {HEAD_TYPE}


def test_an_assistants_token_order_stays_integers(tmp_path: Path) -> None:
    folder = FIXTURES / "gemma4/edge"
    prepare_conversion(
        folder / "assistant", tmp_path / "a.gguf", FAMILIES, ConvertOptions(tokenizer=folder / "hf")
    ).run()
    source = GGUFFile(tmp_path / "a.gguf")
    written = quantize(source.path, tmp_path / "q.gguf", "Q8_0")
    name = "masked_embd_ordering"
    assert written.tensors[name].type == "I32"
    np.testing.assert_array_equal(written.read(name, np.int32), source.read(name, np.int32))


def test_rows_that_do_not_divide_get_a_type_that_fits_and_a_note(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config(mlp_width=48))
    for kind, fitting in {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}.items():
        plan = {t.source.name: t for t in prepare(source, tmp_path / "q.gguf", FAMILIES, QuantizeOptions(kind)).tensors}
        up, down = plan["blk.0.ffn_up.weight"], plan["blk.0.ffn_down.weight"]
        assert (up.type, down.type) == (fitting, "F32")
        assert up.note == f"rows of 64 do not divide into blocks of {kind}"
        assert "rows of 48 do not divide" in down.note


@pytest.mark.parametrize("name", ["head", "assistant"])
def test_parts_go_in_and_come_out_as_the_whole_does(name: str, tmp_path: Path) -> None:
    """Heads and orderings included; what is whole, in parts of the source and in parts of the result is one model."""
    whole = tmp_path / "whole.gguf"
    if name == "head":
        write_tiny_gguf(whole, make_config(moe=True))
    else:
        folder = FIXTURES / "gemma4/edge"
        prepare_conversion(folder / "assistant", whole, FAMILIES, ConvertOptions(tokenizer=folder / "hf")).run()
    parts = prepare_conversion(whole, tmp_path / "in.gguf", FAMILIES, ConvertOptions(split_bytes=60_000)).run()
    assert len(parts) > 1
    usual = quantize(whole, tmp_path / "usual.gguf", "Q4_0")
    assert quantize(parts[1], tmp_path / "merged.gguf", "Q4_0").path.read_bytes() == usual.path.read_bytes()
    plan = prepare(parts[0], tmp_path / "out.gguf", FAMILIES, QuantizeOptions("Q4_0", split_bytes=40_000))
    first = plan.run()
    assert first == plan.files[0]
    assert sorted(tmp_path.glob("out-*")) == plan.files
    assert all(file.stat().st_size <= 40_000 or len(GGUFReader(file).tensors) == 1 for file in plan.files[1:])
    again = GGUFFile(plan.files[-1])
    assert again.tensors == usual.tensors
    for tensor in usual.tensors:
        np.testing.assert_array_equal(again.read_blocks(tensor), usual.read_blocks(tensor), err_msg=tensor)
    assert all(again.values[key] == value for key, value in usual.values.items())


def test_parts_are_replaced_only_by_force_and_never_by_themselves(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    options = QuantizeOptions("Q8_0", split_bytes=60_000)
    plan = prepare(source, tmp_path / "q.gguf", FAMILIES, options)
    first = plan.run()
    with pytest.raises(checkpoints.CheckpointError, match=r"q-00001-of-\d+\.gguf: exists; give --force"):
        prepare(source, tmp_path / "q.gguf", FAMILIES, options)
    forced = QuantizeOptions("Q8_0", split_bytes=60_000, force=True)
    assert prepare(source, tmp_path / "q.gguf", FAMILIES, forced).run() == first
    with pytest.raises(checkpoints.CheckpointError, match="is the source itself"):
        prepare(plan.files[1], tmp_path / "q.gguf", FAMILIES, forced)


def test_the_first_pattern_that_is_found_decides(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    types = types_of(source, "Q4_0", tensor_types=((r"blk\.0\.ffn", "Q8_0"), (r"ffn_(up|down)", "Q5_1")))
    assert types["blk.0.ffn_up.weight"] == "Q8_0"
    assert types["blk.1.ffn_up.weight"] == "Q5_1"
    assert types["blk.1.ffn_gate.weight"] == "Q4_0"
    assert types["blk.1.attn_norm.weight"] == "F32"


def test_tq_types_have_their_numbers_in_the_file(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    for kind, code in {"TQ3_1S": 45, "TQ4_1S": 46}.items():
        written = quantize(source, tmp_path / f"{kind}.gguf", kind)
        assert written.tensors["blk.0.ffn_up.weight"].type == kind
        name = b"blk.0.ffn_up.weight"
        raw = written.path.read_bytes()
        at = raw.index(name) + len(name) + 4 + 2 * 8
        assert int.from_bytes(raw[at : at + 4], "little") == code


def test_types_that_a_fork_numbers_otherwise_are_read_by_name_and_numbered_as_usual(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    usual = quantize(source, tmp_path / "usual.gguf", "TQ4_1S", pure=True).path.read_bytes()
    head = usual.index(b"output.weight")
    table = usual[head : head + 20_000].replace((46).to_bytes(4, "little"), (147).to_bytes(4, "little"))
    fork = tmp_path / "fork.gguf"
    fork.write_bytes(usual[:head] + table + usual[head + 20_000 :])
    with pytest.raises(checkpoints.FormatError, match=r"type number 147, .* --gguf-type 147="):
        GGUFFile(fork)
    again = quantize(fork, tmp_path / "again.gguf", "TQ4_1S", pure=True, type_codes=((147, "tq4_1s"),))
    assert again.path.read_bytes() == usual


def test_a_damaged_tensor_leaves_nothing_behind(tmp_path: Path) -> None:
    good = write_tiny_gguf(tmp_path / "good.gguf", make_config())
    name = "blk.2.ffn_down.weight"
    values = GGUFFile(good).read(name, np.float32)
    values[3, 5] = np.nan
    bad = edit_gguf(good, tmp_path / "bad.gguf", retype={name: (values, GGMLQuantizationType.F32)})
    (tmp_path / "out").mkdir()
    with pytest.raises(EncodingError, match=r"blk\.2\.ffn_down\.weight: the value at row 3, column 5 is nan"):
        quantize(bad, tmp_path / "out" / "q.gguf", "Q4_0")
    assert list((tmp_path / "out").iterdir()) == []


def test_one_tensor_at_a_time_is_in_memory(tmp_path: Path) -> None:
    """At its peak less than three times the largest tensor, whatever the model's size."""
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config(vocab_size=1 << 13, width=256))
    largest = max(tensor.num_bytes for tensor in GGUFFile(source).tensors.values())
    plan = prepare(source, tmp_path / "q.gguf", FAMILIES, QuantizeOptions("Q4_0", pure=True))
    tracemalloc.start()
    try:
        plan.run()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * largest


def test_progress_ends_at_the_size_that_was_planned(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    plan, seen = prepare(source, tmp_path / "q.gguf", FAMILIES, QuantizeOptions("Q4_0")), []
    plan.run(lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen)
    assert seen[-1] == (plan.num_bytes, plan.num_bytes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "IQ2_XS"}, "IQ2_XS is not written: .* types that can be written are Q8_0, Q4_0"),
        ({"type": "Q4"}, "'Q4' is no type"),
        ({"type": "Q4_K_M", "pure": True}, "a mix of types and cannot be pure; give Q4_K"),
        ({"type": "Q4_0", "tensor_types": (("(", "Q8_0"),)}, "no regular expression"),
        ({"type": "Q4_0", "tensor_types": (("up", "Q4_K_M"),)}, "Q4_K_M"),
        ({"type": "Q4_0", "split_bytes": 0}, "must be positive"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(checkpoints.CheckpointError, match=message):
        QuantizeOptions(**options)


def test_destinations_are_replaced_only_by_force(tmp_path: Path) -> None:
    source = write_tiny_gguf(tmp_path / "source.gguf", make_config())
    quantize(source, tmp_path / "q.gguf", "Q4_0")
    with pytest.raises(checkpoints.CheckpointError, match="give --force"):
        prepare(source, tmp_path / "q.gguf", FAMILIES, QuantizeOptions("Q4_0"))
    quantize(source, tmp_path / "q.gguf", "Q4_0", force=True)
    with pytest.raises(checkpoints.CheckpointError, match="the source itself"):
        prepare(source, source, FAMILIES, QuantizeOptions("Q4_0", force=True))
    with pytest.raises(checkpoints.CheckpointError, match="is a folder"):
        prepare(source, tmp_path, FAMILIES, QuantizeOptions("Q4_0", force=True))
    with pytest.raises(checkpoints.CheckpointError, match="found in the name of no matrix"):
        prepare(source, tmp_path / "new.gguf", FAMILIES, QuantizeOptions("Q4_0", tensor_types=(("_norm", "Q8_0"),)))
