"""Each violation of a family's invariants is found, named and explained; bad bytes never end in a traceback."""

from __future__ import annotations

import json
import random
import re
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import edit_gguf, make_config, make_params, make_tokenizer, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError
from checkpoints.convert import ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.verifier import verify
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
ASSISTANT = FIXTURES / "gemma4/edge/assistant"


def errors(path: Path, **options: Any) -> str:
    return "\n".join(f"{finding.what} | {finding.fix}" for finding in verify(path, FAMILIES, **options).errors)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("good") / "good.gguf", make_config(), weights="Q8_0")


@pytest.fixture(scope="module")
def in_orbax(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The good model or a fixture as an Orbax folder, which is to be copied before it is damaged."""

    @cache
    def made(origin: str) -> Path:
        path = tmp_path_factory.mktemp("in_orbax") / "model.orbax"
        prepare(good if origin == "good" else FIXTURES / origin, path, FAMILIES).run()
        return path

    return made


@pytest.mark.parametrize(
    "name",
    [
        "dense/llama/hf",
        "gemma4/moe/hf",
        "gemma4/edge/assistant",
        "gemma4/dense/assistant.gguf",
        "step3_5/flash/hf",
        "qwen3_next/a3b/hf",
    ],
)
def test_good_models_have_no_findings(name: str) -> None:
    assert not verify(FIXTURES / name, FAMILIES).findings


def test_the_bundled_model_has_no_findings() -> None:
    report = verify(bundled_model(), FAMILIES)
    assert not report.findings
    assert any("finite" in line for line in report.checked)


def test_an_orbax_folder_is_verified_too(good: Path, tmp_path: Path) -> None:
    prepare(good, tmp_path / "m.orbax", FAMILIES).run()
    assert not verify(tmp_path / "m.orbax", FAMILIES).findings
    for file in (tmp_path / "m.orbax" / "ocdbt.process_0" / "d").iterdir():
        file.write_bytes(b"")
    assert "cannot be read" in errors(tmp_path / "m.orbax")


@pytest.mark.parametrize("origin", ["good", "step3_5/flash/hf"])
@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("parameters", 1, "F99", "unknown type F99"),
        ("parameters", 3, 1, "does not take 1 bytes"),
        ("tensors", 3, "x", "damaged"),
        ("tensors", 2, [3, 5], "remembers other tensors"),
        ("tensors", 0, "absent.weight", "remembers other tensors"),
        ("parameters", 0, "target.absent", "is missing"),
    ],
)
def test_damage_to_an_orbax_folders_manifest_is_explained(
    table: str,
    column: int,
    value: object,
    message: str,
    origin: str,
    in_orbax: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    shutil.copytree(in_orbax(origin), tmp_path / "m.orbax")
    manifest = tmp_path / "m.orbax" / "specjax.json"
    document = json.loads(manifest.read_text())
    row = document[table][-1]
    row[column] = value
    if column == 2:
        row[1], row[3] = "F32", 60  # bytes of that shape: nothing but the model contradicts it
    manifest.write_text(json.dumps(document))
    assert message in errors(tmp_path / "m.orbax")
    for kind in ("gguf", "hf", "orbax"):
        with pytest.raises(CheckpointError):
            prepare(tmp_path / "m.orbax", tmp_path / "out", FAMILIES, ConvertOptions(kind))
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("table", ["parameters", "tensors"])
@pytest.mark.parametrize("row", [[], {}, 7, ["target.embed.weight"]])
def test_a_row_of_an_orbax_folders_manifest_that_is_none_is_said(
    table: str, row: object, in_orbax: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(in_orbax("good"), tmp_path / "m.orbax")
    manifest = tmp_path / "m.orbax" / "specjax.json"
    document = json.loads(manifest.read_text())
    document[table].append(row)
    manifest.write_text(json.dumps(document))
    assert "specjax.json: damaged (" in errors(tmp_path / "m.orbax")


def test_an_orbax_array_of_another_type_and_a_damaged_tree_are_explained(good: Path, tmp_path: Path) -> None:
    prepare(good, tmp_path / "m.orbax", FAMILIES).run()
    manifest, tree = (tmp_path / "m.orbax" / name for name in ("specjax.json", "_METADATA"))
    text = manifest.read_text()
    document = json.loads(text)
    row = next(row for row in document["parameters"] if row[1] == "F32")
    row[1], row[3] = "BF16", row[3] // 2
    manifest.write_text(json.dumps(document))
    assert f"{row[0]} is float32, but specjax.json says bfloat16" in errors(tmp_path / "m.orbax")
    manifest.write_text(text)
    tree.write_bytes(tree.read_bytes()[:-20])
    assert "_METADATA: not JSON" in errors(tmp_path / "m.orbax")


def _edit(**changes: Any) -> Callable[[Path, Path], Path]:
    return lambda source, target: edit_gguf(source, target, **changes)


def _f32(shape: tuple[int, ...], value: float = 0.5) -> tuple[np.ndarray, GGMLQuantizationType]:
    return np.full(shape, value, np.float32), GGMLQuantizationType.F32


UP = "blk.1.ffn_up.weight"
HEAD = ("blk.3.nextn.eh_proj.weight", "blk.3.attn_q.weight")
INFINITE = np.tile(np.frombuffer(np.float16(np.inf).tobytes() + bytes(range(32)), np.uint8), (96, 2))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_edit(drop=HEAD), "the MTP head is incomplete: tensor blk.3"),
        (_edit(drop=[f"blk.3.{n}" for n in ("x",)], drop_keys=["qwen35.nextn_predict_layers"]), "lack a declaration"),
        (_edit(drop=["output_norm.weight"]), "tensor output_norm.weight (64,) is missing"),
        (_edit(retype={"blk.2.attn_k.weight": _f32((64, 32))}), "expected (32, 64), got (64, 32)"),
        (_edit(retype={UP: (np.zeros((96, 64), np.int32), GGMLQuantizationType.I32)}), "not a type"),
        (_edit(retype={UP: _f32((96, 64), np.nan)}), "values are not finite: 6144 of 6144"),
        (
            _edit(retype={UP: (INFINITE, GGMLQuantizationType.Q8_0)}),
            "scales of blocks are not finite",
        ),
        (
            _edit(retype={UP: _f32((96, 64), 0)}),
            "every value is zero | so look files whose download",
        ),
        (_edit(retype={"output_norm.weight": _f32((64,), 0)}), "every value is zero"),
        (_edit(retype={"blk.1.ssm_a": _f32((4,), 2)}), "decay rates must be negative, -exp(A_log); the largest is 2"),
        (_edit(keys={"general.type": "adapter"}), "a GGUF of the type 'adapter', and no model"),
        (_edit(keys={"general.architecture": "mamba"}), "'mamba' is not known"),
        (_edit(keys={"qwen35.block_count": "four"}), "describe no model"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_damage_to_a_gguf_is_explained(
    damage: Callable[[Path, Path], Path], message: str, good: Path, tmp_path: Path
) -> None:
    assert message in errors(damage(good, tmp_path / "bad.gguf"))


def _entry(raw: bytes, name: str) -> int:
    """Where the number of the tensor's type is; its offset follows."""
    text = struct.pack("<Q", len(name)) + name.encode()
    at = raw.index(text) + len(text)
    return at + 4 + 8 * struct.unpack_from("<I", raw, at)[0]


@pytest.mark.parametrize(
    ("position", "code", "value", "message"),
    [
        (0, "<I", 42, "type number 42, which is TURBO2_0 .* a type of KV caches, .* Quantize the original again"),
        (0, "<I", 44, "type number 44, which is TURBO4_0"),
        (0, "<I", 199, "type number 199, which the installed gguf package does not know"),
        (4, "<Q", 34, "begins at byte 34 of the data, which is no multiple of the alignment 32"),
        (4, "<Q", 0, "begins within|begin within"),
    ],
)
def test_damage_to_the_table_of_a_gguf_is_explained(
    position: int, code: str, value: int, message: str, good: Path, tmp_path: Path
) -> None:
    raw = bytearray(good.read_bytes())
    struct.pack_into(code, raw, _entry(raw, UP) + position, value)
    (tmp_path / "bad.gguf").write_bytes(raw)
    assert re.search(message, errors(tmp_path / "bad.gguf"))


def test_a_key_that_occurs_twice_is_an_error(good: Path, tmp_path: Path) -> None:
    raw = good.read_bytes()
    (count,) = struct.unpack_from("<Q", raw, 16)
    key = b"qwen35.context_length"
    again = struct.pack("<Q", len(key)) + key + struct.pack("<II", 4, 64)
    (tmp_path / "bad.gguf").write_bytes(raw[:16] + struct.pack("<Q", count + 1) + again + raw[24:])
    assert "the metadata key qwen35.context_length occurs twice" in errors(tmp_path / "bad.gguf")


@pytest.mark.parametrize(
    ("name", "message"),
    [("gemma4/dense/assistant.gguf", "pairs rotate"), ("dense/llama/model.gguf", "divisors of rotary frequencies")],
)
def test_rotary_divisors_are_checked(name: str, message: str, tmp_path: Path) -> None:
    divisors = GGUFFile(FIXTURES / name).read("rope_freqs.weight", np.float32)[::-1].copy()
    retype = {"rope_freqs.weight": (divisors, GGMLQuantizationType.F32)}
    assert message in errors(edit_gguf(FIXTURES / name, tmp_path / "bad.gguf", retype=retype))


def test_damage_to_an_assistants_centroid_head_is_explained(tmp_path: Path) -> None:
    """Nothing of the head may be lost, cut, or of another type."""
    source, bad = tmp_path / "assistant.gguf", tmp_path / "bad.gguf"
    prepare(ASSISTANT, source, FAMILIES, ConvertOptions(tokenizer=ASSISTANT.parent / "hf")).run()
    file, f32, i32 = GGUFFile(source), GGMLQuantizationType.F32, GGMLQuantizationType.I32
    ordering, centroids = "masked_embd_ordering", "masked_embd_centroids.weight"
    ids, table = file.read(ordering, np.int32), file.read(centroids, np.float32)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"retype": {ordering: (ids.astype(np.float32), f32)}}, "masked_embd_ordering: F32 is not a type"),
        (
            {"retype": {ordering: (ids[:-8], i32)}},
            f"expected ({len(ids)},), got ({len(ids) - 8},)",
        ),
        ({"retype": {centroids: (table[:-3], f32)}}, f"of {len(table) - 3} centroids"),
        ({"drop": [ordering]}, "the MTP head is incomplete: tensor masked_embd_ordering"),
        ({"drop": [centroids]}, "masked_embd_ordering"),
        ({"drop": [ordering, centroids]}, "declares a centroid head, but there is no masked_embd_centroids"),
    ]
    assert not errors(source)
    for changes, message in cases:
        assert message in errors(edit_gguf(source, bad, **changes)), message


def test_shards_must_be_those_of_the_index(tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    shutil.copytree(FIXTURES / "qwen3_5/moe/hf", folder)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    weights = document["weight_map"]
    first, last = min(weights.values()), max(weights.values())
    name = next(name for name, file in weights.items() if file == first)
    rest = {key: file for key, file in weights.items() if key != name}
    for changed in (weights | {name: last}, rest, weights | {"model.absent.weight": last}):
        index.write_text(json.dumps(document | {"weight_map": changed}))
        assert "index and shards disagree about 1 tensors" in errors(folder)


def test_values_are_left_unread_when_fast(good: Path, tmp_path: Path) -> None:
    bad = edit_gguf(good, tmp_path / "bad.gguf", retype={UP: _f32((96, 64), np.nan)})
    assert not verify(bad, FAMILIES, fast=True).errors


def test_a_declared_head_that_is_absent_is_an_error(good: Path, tmp_path: Path) -> None:
    head = [name for name in GGUFFile(good).tensors if name.startswith("blk.3.")]
    assert "--drop-mtp" in errors(edit_gguf(good, tmp_path / "bad.gguf", drop=head))


def test_small_tensors_that_llama_cpp_wants_in_f32_are_noted(good: Path, tmp_path: Path) -> None:
    half = np.ones(64, np.float16), GGMLQuantizationType.F16
    report = verify(edit_gguf(good, tmp_path / "bad.gguf", retype={"output_norm.weight": half}), FAMILIES)
    assert not report.errors
    assert "output_norm.weight (F16)" in report.findings[0].what


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ASSISTANT, tmp_path / "assistant")
    return tmp_path / "assistant"


def _change(folder: Path, **tensors: np.ndarray) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name.replace("__", "."): x for name, x in tensors.items()}, path)


def test_an_ordering_must_be_a_permutation(folder: Path) -> None:
    ordering = load_file(folder / "model.safetensors")["masked_embedding.token_ordering"].copy()
    ordering[0] = ordering[1]
    _change(folder, masked_embedding__token_ordering=ordering)
    assert "1 are missing, 1 occur more than once" in errors(folder)


def test_centroids_must_share_the_vocabulary(folder: Path) -> None:
    document = json.loads((folder / "config.json").read_text())
    count = document["num_centroids"] + 1
    (folder / "config.json").write_text(json.dumps(document | {"num_centroids": count}))
    assert f"{count}" in errors(folder)


def test_older_assistants_are_explained(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "old.gguf", "gemma4_assistant")
    writer.add_tensor("mtp.pre_projection.weight", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "before llama.cpp could run it" in errors(tmp_path / "old.gguf")


def test_tokens_beyond_the_table_and_a_head_that_is_not_tied(tmp_path: Path) -> None:
    config = make_config(vocab_size=260, tied_embeddings=True)
    checkpoints.write_hf(tmp_path / "hf", FAMILIES, config, make_params(config), make_tokenizer())
    _change(tmp_path / "hf", lm_head__weight=np.ones((260, 64), np.float32))
    found = errors(tmp_path / "hf")
    assert "the tokenizer has 265 tokens, but the embedding table 260 rows" in found
    assert "special tokens are outside the vocabulary of 260: [262" in found
    assert "lm_head.weight is not the embedding table" in found


@pytest.mark.parametrize("path", ["absent.gguf", "."])
def test_what_is_no_model_is_said(path: str, tmp_path: Path) -> None:
    assert errors(tmp_path / path)


def _mutate(value: Any, rng: random.Random) -> Any:
    """A JSON document with one value that is something else."""
    if isinstance(value, dict) and value:
        key = rng.choice(list(value))
        return value | {key: _mutate(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.8:
        i = rng.randrange(len(value))
        return [*value[:i], _mutate(value[i], rng), *value[i + 1 :]]
    return rng.choice([None, -1, 0, 1e300, "x", [], {}, True, [1], 2**70, 1.5])


def _damage(file: Path, rng: random.Random) -> None:
    if file.suffix == ".json" and rng.random() < 0.7:
        file.write_text(json.dumps(_mutate(json.loads(file.read_text()), rng)))
        return
    raw = bytearray(file.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 4, 20])):
        at = rng.randrange(min(len(raw), 20_000)) if raw else 0
        match rng.randrange(5):
            case 0 | 1 if raw:
                raw[at] = rng.randrange(256)
            case 2:
                del raw[rng.randrange(len(raw) + 1) :]
            case 3:
                del raw[at : at + rng.randrange(1, 64)]
            case _:
                raw[at:at] = rng.randbytes(rng.randrange(1, 16))
    file.write_bytes(raw)


DAMAGED = (
    "qwen3_5/moe/model.gguf",
    "step3_5/flash/hf",
    "gemma4/edge/assistant",
    "eagle3/speculators",
    "dspark/speculators_rnn",
    "orbax",
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", DAMAGED)
def test_random_damage_ends_in_an_explanation_or_in_a_model(
    name: str, seed: int, in_orbax: Callable[[str], Path], tmp_path: Path
) -> None:
    """Bytes are changed, cut out and put in; JSON values are replaced. Only the package's own errors may come of it."""
    rng, source = random.Random(f"{name} {seed}"), in_orbax("good") if name == "orbax" else FIXTURES / name
    for round_number in range(8):
        path = tmp_path / f"{round_number}{source.suffix}"
        if source.is_file():
            shutil.copy(source, path)
            _damage(path, rng)
        else:
            shutil.copytree(source, path)
            _damage(rng.choice(sorted(file for file in path.rglob("*") if file.is_file())), rng)
        verify(path, FAMILIES)
        with suppress(CheckpointError):
            prepare(path, tmp_path / "out.gguf", FAMILIES, ConvertOptions("gguf", force=True)).run()
