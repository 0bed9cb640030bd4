"""Conversions: what a format can hold comes out as it went in, and what cannot be held is said or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from tiny_checkpoints import assert_same, edit_gguf, make_config, make_params, make_tokenizer, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError, quantization
from checkpoints.convert import Conversion, ConvertOptions, prepare
from checkpoints.gguf.file import GGUFFile
from checkpoints.mapping.tree import flatten, unflatten
from checkpoints.quantization import QuantizeOptions
from checkpoints.safetensors.file import SafetensorsDirectory
from pallas_kernels.matmul import QTensor
from specjax.models.dense import DenseConfig
from specjax.models.dense import gguf as dense
from specjax.models.registry import FAMILIES
from specjax.runtime.loading import bundled_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
MODELS = ("dense/llama", "dense/qwen3", "gemma4/dense", "gemma4/edge", "gemma4/moe", "qwen3_5/dense", "qwen3_5/moe")
MODELS += ("qwen3_5/tied", "qwen3_next/a3b", "qwen3_next/tied", "step3_5/flash", "step3_5/plain")
MODELS += ("glm4_moe/air", "glm4_moe/large", "glm4_moe/plain")
GGUFS = (*(f"{name}/model.gguf" for name in MODELS), "gemma4/dense/assistant.gguf", "gemma4/edge/assistant.gguf")
CHOSEN = ("gemma4/edge", "glm4_moe/large", "qwen3_next/tied"), ("dense/llama", "qwen3_5/moe", "step3_5/flash")
"""Those that go through Orbax as a GGUF, and as a folder; in the slow tests all of them as both."""


def through_orbax(usual: Sequence[str], slow: Sequence[str], file: str, *others: str) -> pytest.MarkDecorator:
    """The test for these files of the models."""
    marked = (pytest.param(f"{name}/{file}", marks=pytest.mark.slow) for name in slow)
    return pytest.mark.parametrize("name", [*others, *(f"{name}/{file}" for name in usual), *marked])


def convert(source: Path, destination: Path, **options: object) -> Conversion:
    """Convert, and compare as --verify does."""
    conversion = prepare(source, destination, FAMILIES, ConvertOptions(**options))  # type: ignore[arg-type]
    found = conversion.compare(conversion.run())
    assert not found.wrong
    return conversion


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", make_config(), weights="Q8_0")


@through_orbax(CHOSEN[0], CHOSEN[1], "model.gguf", "bundled", "gemma4/dense/assistant.gguf")
def test_a_gguf_comes_out_of_orbax_as_the_same_file(name: str, tmp_path: Path) -> None:
    source = bundled_model() if name == "bundled" else FIXTURES / name
    first = convert(source, tmp_path / "model.orbax")
    assert all(tensor.exact for tensor in first.tensors)
    convert(tmp_path / "model.orbax", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()


@through_orbax(CHOSEN[1], CHOSEN[0], "hf", "gemma4/edge/assistant")
def test_a_folder_comes_out_of_orbax_as_it_was(name: str, tmp_path: Path) -> None:
    source = FIXTURES / name
    convert(source, tmp_path / "model.orbax")
    convert(tmp_path / "model.orbax", tmp_path / "back", to="hf")
    before, after = SafetensorsDirectory(source), SafetensorsDirectory(tmp_path / "back")
    assert after.tensors == before.tensors
    for tensor in before.tensors:
        np.testing.assert_array_equal(after.read_blocks(tensor), before.read_blocks(tensor), err_msg=tensor)
    assert after.document == before.document
    for file in ("tokenizer.json", "tokenizer_config.json"):
        if (source / file).exists():
            assert (tmp_path / "back" / file).read_bytes() == (source / file).read_bytes()


@pytest.mark.parametrize("name", GGUFS)
def test_tensors_of_a_gguf_are_those_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    """The fixtures are its conversions. Its own exp rounds differently; assistants lose their centroid heads there."""
    folder = (FIXTURES / name).parent
    source = folder / ("hf" if name.endswith("model.gguf") else "assistant")
    convert(source, tmp_path / "model.gguf", tokenizer=folder / "hf" if source.name == "assistant" else None)
    theirs, ours = GGUFFile(FIXTURES / name), GGUFFile(tmp_path / "model.gguf")
    extra = {"masked_embd_centroids.weight", "masked_embd_ordering"} if "edge/assistant" in name else set()
    assert ours.tensors.keys() - extra == theirs.tensors.keys()
    for tensor, info in theirs.tensors.items():
        assert ours.tensors[tensor] == info
        got, want = ours.read(tensor, np.float32), theirs.read(tensor, np.float32)
        np.testing.assert_allclose(got, want, rtol=1e-6 if tensor.endswith("ssm_a") else 0, err_msg=tensor)


@pytest.mark.parametrize("through", ["hf", "orbax"])
@pytest.mark.parametrize("moe", [False, True])
def test_packed_matrices_stay_packed_in_orbax_and_are_decoded_for_safetensors(
    through: str, moe: bool, tmp_path: Path
) -> None:
    config = make_config(moe)
    source = write_tiny_gguf(tmp_path / "model.gguf", config, weights="Q8_0")
    conversion = convert(source, tmp_path / "model", to=through)
    types = {tensor.info.type for tensor in conversion.tensors}
    assert types == ({"F32", "BF16"} if through == "hf" else {"F32", "Q8_0"})
    assert bool(conversion.decoded) == (through == "hf")
    loaded = checkpoints.load(tmp_path / "model", FAMILIES)
    assert loaded.config == config
    assert loaded.tokenizer is not None
    assert loaded.tokenizer.eos_ids == checkpoints.load(source, FAMILIES).tokenizer.eos_ids  # type: ignore[union-attr]
    assert_same(loaded.params, make_params(config), rtol=1e-6)


def test_an_orbax_folder_loads_packed_as_its_gguf_does(tiny: Path, tmp_path: Path) -> None:
    convert(tiny, tmp_path / "model.orbax")
    ours, theirs = (
        flatten(checkpoints.load(path, FAMILIES, packed="a16").params) for path in (tmp_path / "model.orbax", tiny)
    )
    assert ours.keys() == theirs.keys()
    assert sum(isinstance(leaf, QTensor) for leaf in ours.values()) > 10
    for path, leaf in theirs.items():
        assert repr(ours[path]) == repr(leaf), path
    assert checkpoints.describe(tmp_path / "model.orbax", FAMILIES).problems is None


def test_types_that_nothing_computes_with_are_kept_too(tmp_path: Path) -> None:
    config, retyped = make_config(mlp_width=256), {}
    for layer, code in enumerate(GGMLQuantizationType[kind] for kind in ("Q4_K", "Q2_K", "MXFP4", "TQ1_0")):
        block, size = gguf.GGML_QUANT_SIZES[code]
        raw = np.tile(np.arange(size, dtype=np.uint8) % 32, (config.width, 256 // block))
        retyped[f"blk.{layer}.ffn_down.weight"] = raw, code
    source = edit_gguf(write_tiny_gguf(tmp_path / "plain.gguf", config), tmp_path / "model.gguf", retype=retyped)
    convert(source, tmp_path / "model.orbax")
    convert(tmp_path / "model.orbax", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()
    assert_same(checkpoints.load(tmp_path / "model.orbax", FAMILIES).params, checkpoints.load(source, FAMILIES).params)


def test_rows_that_a_rule_reorders_are_reordered_packed(tmp_path: Path) -> None:
    """Queries and keys of Llama lie in pairs of rows in a GGUF, in halves in the parameters."""
    config = DenseConfig("llama", 272, 1, 64, 64, 4, 2, 16)
    rng = np.random.default_rng(0)
    shapes = dense.gguf_rules(config).shapes
    params = unflatten({path: rng.standard_normal(shape, np.float32) for path, shape in shapes.items()})
    packed = tmp_path / "packed.gguf"
    checkpoints.write_gguf(packed, FAMILIES, config, params, make_tokenizer(), weights="Q8_0")
    convert(packed, tmp_path / "model.orbax")
    assert_same(checkpoints.load(tmp_path / "model.orbax", FAMILIES).params, checkpoints.load(packed, FAMILIES).params)
    convert(tmp_path / "model.orbax", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == packed.read_bytes()


def test_fused_experts_stay_fused(tmp_path: Path) -> None:
    config = make_config(moe=True)
    separate = write_tiny_gguf(tmp_path / "separate.gguf", config, weights="F16")
    parts = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(separate).tensors}
    gate, up = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_up_exps.weight"
    fused = {"blk.0.ffn_gate_up_exps.weight": np.concatenate([parts[gate], parts[up]], axis=1)}
    source = edit_gguf(separate, tmp_path / "fused.gguf", drop=(gate, up), add=fused)
    convert(source, tmp_path / "model.orbax")
    convert(tmp_path / "model.orbax", tmp_path / "back.gguf")
    assert (tmp_path / "back.gguf").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("to", ["gguf", "hf", "orbax"])
def test_dtype_is_of_matrices(to: str, tmp_path: Path) -> None:
    convert(FIXTURES / "qwen3_5/dense/hf", tmp_path / "model", to=to, dtype="float16")
    tensors = checkpoints.describe(tmp_path / "model", FAMILIES).tensors
    assert {tensor.type for tensor in tensors if len(tensor.shape) == 2 and "conv" not in tensor.name} == {"F16"}
    if to == "hf":
        assert SafetensorsDirectory(tmp_path / "model").document["dtype"] == "float16"
    if to == "gguf":
        assert GGUFFile(tmp_path / "model").metadata["general.file_type"] == 1


def test_values_that_do_not_fit_a_type_are_refused(tmp_path: Path) -> None:
    name, large = "blk.0.ffn_up.weight", np.full((96, 64), 1e6, np.float32)
    plain = write_tiny_gguf(tmp_path / "plain.gguf", make_config())
    source = edit_gguf(plain, tmp_path / "large.gguf", retype={name: (large, GGMLQuantizationType.F32)})
    for to in ("gguf", "hf", "orbax"):
        with pytest.raises(CheckpointError, match="do not fit F16"):
            prepare(source, tmp_path / "out", FAMILIES, ConvertOptions(to=to, dtype="float16")).run()  # type: ignore[arg-type]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large.gguf", "plain.gguf"]


TRUNKS = {
    "qwen3_5/moe/model.gguf": "gguf",
    "qwen3_5/dense/hf": "hf",
    "qwen3_next/a3b/hf": "gguf",
    "step3_5/plain/model.gguf": "orbax",
}
"""What is converted into what, if not slowly into everything."""


@pytest.mark.parametrize(
    ("name", "to"),
    [
        pytest.param(name, to, marks=[pytest.mark.slow] * (to != usual))
        for name, usual in TRUNKS.items()
        for to in ("gguf", "hf", "orbax")
    ],
)
def test_a_dropped_head_leaves_a_model_that_declares_none(name: str, to: str, tmp_path: Path) -> None:
    """A missing head would be warned of, and warnings are errors here."""
    convert(FIXTURES / name, tmp_path / "trunk", to=to, drop_mtp=True)
    trunk, whole = checkpoints.load(tmp_path / "trunk", FAMILIES), checkpoints.load(FIXTURES / name, FAMILIES)
    assert trunk.config.mtp_layers == 0
    assert_same(trunk.params, {"target": whole.params["target"]}, rtol=1e-6)


def test_a_head_is_dropped_from_orbax_as_well(tmp_path: Path) -> None:
    convert(FIXTURES / "step3_5/flash/hf", tmp_path / "whole.orbax")
    convert(tmp_path / "whole.orbax", tmp_path / "trunk.gguf", drop_mtp=True)
    assert "step35.nextn_predict_layers" not in GGUFFile(tmp_path / "trunk.gguf").metadata
    assert checkpoints.load(tmp_path / "trunk.gguf", FAMILIES).params.keys() == {"target"}


def test_a_head_that_is_absent_is_dropped_only_when_asked(tiny: Path, tmp_path: Path) -> None:
    head = [name for name in GGUFFile(tiny).tensors if name.startswith("blk.3.")]
    headless = edit_gguf(tiny, tmp_path / "headless.gguf", drop=head)
    folder = tmp_path / "hf"
    checkpoints.write_hf(folder, FAMILIES, make_config(), make_params(make_config()))
    tensors = load_file(folder / "model.safetensors")
    save_file({n: x for n, x in tensors.items() if not n.startswith("mtp.")}, folder / "model.safetensors")
    for source in (headless, folder):
        with pytest.raises(CheckpointError, match=r"none of its tensors.*give --drop-mtp"):
            prepare(source, tmp_path / "out", FAMILIES, ConvertOptions("orbax"))
        convert(source, tmp_path / f"{source.stem}.orbax", drop_mtp=True)
        assert not checkpoints.describe(tmp_path / f"{source.stem}.orbax", FAMILIES).has_mtp
    for source, message in ((tmp_path / "hf.orbax", "no MTP head"), (FIXTURES / GGUFS[-1], "nothing but a head")):
        with pytest.raises(CheckpointError, match=message):
            prepare(source, tmp_path / "out", FAMILIES, ConvertOptions("orbax", drop_mtp=True))


def test_what_a_format_cannot_express_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tokenizer.*--tokenizer"):
        prepare(FIXTURES / "gemma4/edge/assistant", tmp_path / "m.gguf", FAMILIES)
    assert not list(tmp_path.iterdir())


def test_a_pre_tokenizer_that_a_gguf_cannot_name_is_said_with_the_file_and_a_way_out(
    tiny: Path, tmp_path: Path
) -> None:
    for name in ("odd", "other"):
        convert(tiny, tmp_path / name, to="hf")
        path = tmp_path / name / "tokenizer.json"
        document = json.loads(path.read_text())
        document["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\s+"
        path.write_text(json.dumps(document))
    odd, other = tmp_path / "odd", tmp_path / "other"
    says = "this pre-tokenizer cannot be written to a GGUF: .*; specjax convert --tokenizer takes"
    with pytest.raises(CheckpointError, match=f"{odd}: {says}"):
        prepare(odd, tmp_path / "m.gguf", FAMILIES)
    with pytest.raises(CheckpointError, match=f"{other}: {says}"):
        prepare(odd, tmp_path / "m.gguf", FAMILIES, ConvertOptions(tokenizer=other))
    with pytest.raises(CheckpointError, match=f"{odd}: {says}"):
        quantization.prepare(odd, tmp_path / "m.gguf", FAMILIES, QuantizeOptions("Q8_0"))
    convert(odd, tmp_path / "m.gguf", tokenizer=tiny)


@pytest.mark.parametrize("mlp_width", [0, 512])
def test_a_sparse_model_keeps_a_dense_width_of_which_it_has_no_use(mlp_width: int, tmp_path: Path) -> None:
    config = make_config(moe=True, mlp_width=mlp_width)
    convert(write_tiny_gguf(tmp_path / "m.gguf", config), tmp_path / "hf", to="hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text()).get("intermediate_size", 0) == mlp_width
    convert(tmp_path / "hf", tmp_path / "back.gguf")
    assert checkpoints.describe(tmp_path / "back.gguf", FAMILIES).config == config


def test_a_tower_is_left_out_of_a_gguf_and_kept_by_orbax(tmp_path: Path) -> None:
    config = make_config()
    checkpoints.write_hf(tmp_path / "hf", FAMILIES, config, make_params(config), make_tokenizer())
    weights = tmp_path / "hf" / "model.safetensors"
    tower = {"model.visual.x": np.arange(6, dtype=np.uint8).reshape(2, 3)}
    save_file(load_file(weights) | tower, weights)
    convert(tmp_path / "hf", tmp_path / "model.orbax")
    convert(tmp_path / "model.orbax", tmp_path / "back", to="hf")
    back = load_file(tmp_path / "back" / "model.safetensors")
    np.testing.assert_array_equal(back["model.visual.x"], tower["model.visual.x"])
    to_gguf = prepare(tmp_path / "hf", tmp_path / "m.gguf", FAMILIES)
    assert list(to_gguf.left_out.items()) == [("model.visual.x", "the vision tower; only the text model is loaded")]


def test_shards_hold_to_their_size(tiny: Path, tmp_path: Path) -> None:
    convert(tiny, tmp_path / "hf", to="hf", split_bytes=40_000)
    shards = sorted((tmp_path / "hf").glob("model-*.safetensors"))
    assert len(shards) > 3
    index = json.loads((tmp_path / "hf" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"].values()) == {shard.name for shard in shards}
    convert(tiny, tmp_path / "split.gguf", split_bytes=40_000)
    part = next(tmp_path.glob("split-00002-of-*.gguf"))
    convert(part, tmp_path / "whole.gguf")
    assert (tmp_path / "whole.gguf").read_bytes() == tiny.read_bytes()


def test_only_models_are_replaced_and_only_by_force(tiny: Path, tmp_path: Path) -> None:
    convert(tiny, tmp_path / "m.gguf")
    convert(tiny, tmp_path / "s.gguf", split_bytes=60_000)
    (tmp_path / "m.orbax").mkdir()
    convert(tiny, tmp_path / "m.orbax")
    for name, size in (("m.gguf", None), ("s.gguf", 60_000), ("m.orbax", None)):
        with pytest.raises(CheckpointError, match=r"exists; give --force"):
            prepare(tiny, tmp_path / name, FAMILIES, ConvertOptions(split_bytes=size))
        convert(tiny, tmp_path / name, force=True, split_bytes=size)
    part = next(tmp_path.glob("s-00002-of-*.gguf"))
    with pytest.raises(CheckpointError, match="is the source itself"):
        prepare(part, tmp_path / "s.gguf", FAMILIES, ConvertOptions(split_bytes=60_000, force=True))
    convert(part, tmp_path / "s.gguf")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").touch()
    with pytest.raises(CheckpointError, match="holds no model"):
        prepare(tiny, tmp_path / "home", FAMILIES, ConvertOptions("hf", force=True))
    with pytest.raises(CheckpointError, match="is the source itself"):
        prepare(tiny, tiny, FAMILIES, ConvertOptions(force=True))
    with pytest.raises(CheckpointError, match="of which format"):
        prepare(tiny, tmp_path / "new", FAMILIES)


def test_a_comparison_finds_a_changed_value(tiny: Path, tmp_path: Path) -> None:
    conversion = prepare(tiny, tmp_path / "copy.gguf", FAMILIES)
    (written,) = conversion.run()
    raw = bytearray(written.read_bytes())
    raw[-100] ^= 1
    written.write_bytes(raw)
    found = conversion.compare([written])
    assert len(found.wrong) == 1
    assert found.equal == len(conversion.tensors) - 1
    assert "values differ by" in found.wrong[0]


SHARDED = """
import sys, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from checkpoints.mapping.tree import flatten
from checkpoints.orbax.folder import OrbaxFolder, restore
import orbax.checkpoint as ocp

mesh = Mesh(np.array(jax.devices()), ("x",))
def rows(path, shape):
    split = len(shape) == 2 and shape[0] % 4 == 0
    return NamedSharding(mesh, PartitionSpec("x" if split else None))
params, folder, split = flatten(restore(sys.argv[1], rows)), OrbaxFolder(sys.argv[1]), 0
assert params.keys() == folder.tensors.keys()
for path, leaf in params.items():
    array = leaf if isinstance(leaf, jax.Array) else leaf.parts["blocks"]
    if array.ndim == 2 and array.shape[0] % 4 == 0:
        assert len(array.addressable_shards) == 4
        assert all(shard.data.shape[0] == array.shape[0] // 4 for shard in array.addressable_shards), path
        split += 1
    np.testing.assert_array_equal(np.asarray(array).view(np.uint8).reshape(-1), folder.read_blocks(path).reshape(-1))
assert split > 10
plain = ocp.StandardCheckpointer().restore(sys.argv[1])
assert plain["target"]["embed"]["weight"]["parts"]["blocks"].dtype == np.uint8
"""


def test_orbax_restores_into_a_sharded_tree(tiny: Path, tmp_path: Path) -> None:
    """Four devices hold a quarter of each matrix; and Orbax alone reads the folder."""
    convert(tiny, tmp_path / "model.orbax")
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", SHARDED, str(tmp_path / "model.orbax")]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
