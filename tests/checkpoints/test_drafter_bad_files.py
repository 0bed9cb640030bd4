"""Drafter files that are damaged, or that declare what is not in them, are refused with the reason."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drafter_fixtures import FIXTURES
from gguf import GGMLQuantizationType
from safetensors.numpy import load_file, save_file
from test_drafter_files import IN_GGUF, as_gguf, changed, load
from tiny_checkpoints import edit_gguf

from checkpoints import CheckpointError, ConfigError
from checkpoints.verifier import verify
from specjax.models.registry import FAMILIES

NEST = "transformer_layer_config"


def with_tensors(name: str, folder: Path, change: dict[str, np.ndarray], drop: tuple[str, ...] = ()) -> Path:
    """The drafter with other tensors, without some, in a new folder."""
    shutil.copytree(FIXTURES / name, folder)
    tensors = {**load_file(folder / "model.safetensors"), **change}
    save_file({key: value for key, value in tensors.items() if key not in drop}, folder / "model.safetensors")
    return folder


def errors(path: Path) -> str:
    return "\n".join(finding.what for finding in verify(path, FAMILIES).errors)


@pytest.mark.parametrize("name", ["eagle3/specforge", "dflash/speculators", "dspark/speculators_rnn"])
def test_a_map_that_leads_out_of_the_vocabulary_or_twice_to_a_token_is_refused(name: str, tmp_path: Path) -> None:
    good = load_file(FIXTURES / name / "model.safetensors")["d2t"]
    beyond, before, twice = good.copy(), good.copy(), good.copy()
    beyond[-1], before[0], twice[1] = 320, -1, good[0] - 1
    for index, (bad, message) in enumerate(
        ((beyond, "tokens that the target does not have"), (before, "does not have, such as -1"), (twice, "2 times"))
    ):
        path = with_tensors(name, tmp_path / str(index), {"d2t": bad})
        assert message in errors(path)
        with pytest.raises(CheckpointError, match=message):
            load(path)


def test_a_map_of_a_gguf_is_held_to_the_same(tmp_path: Path) -> None:
    source = as_gguf("eagle3/speculators", tmp_path)
    bad = np.arange(96, dtype=np.int64)
    bad[7] = 320
    kind = GGMLQuantizationType.I64
    path = edit_gguf(source, tmp_path / "bad.gguf", retype={"d2t": (bad, kind)})
    assert "1 tokens that the target does not have, such as 320" in errors(path)
    distances = np.full(96, 5, np.int64)  # as Hugging Face's form has them
    path = edit_gguf(source, tmp_path / "distances.gguf", retype={"d2t": (distances, kind)})
    assert "to token 5 96 times" in errors(path)


OPTIONAL = {"t2d", "lm_head.weight", "embed_tokens.weight"}


@pytest.mark.parametrize(
    "name", ["eagle3/specforge", "eagle3/speculators_layers", "dflash/dflash2", "dspark/speculators_rnn"]
)
def test_no_tensor_can_be_missing(name: str, tmp_path: Path) -> None:
    """Tables that are absent are the target's; all else, heads included, must be there."""
    names = load_file(FIXTURES / name / "model.safetensors").keys() - OPTIONAL
    assert len(names) > 10
    for index, tensor in enumerate(sorted(names)):
        path = with_tensors(name, tmp_path / str(index), {}, drop=(tensor,))
        assert errors(path), tensor


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("dspark/specforge_vanilla", "markov_head."),
        ("dspark/speculators_rnn", "markov_head."),
        ("dflash/dflash2", "candidate_"),
    ],
)
def test_a_head_that_is_declared_and_absent_is_an_error(name: str, part: str, tmp_path: Path) -> None:
    """Without it the drafts would be others."""
    tensors = load_file(FIXTURES / name / "model.safetensors")
    drop = tuple(tensor for tensor in tensors if tensor.startswith((part, "confidence_head.")))
    with pytest.raises(ConfigError, match=r"declares a (markov|selector) head, but has no tensors of it"):
        load(with_tensors(name, tmp_path / "hf", {}, drop))


def nested(**change: Any) -> dict[str, Any]:
    document = json.loads((FIXTURES / "eagle3/speculators/config.json").read_text())
    return {NEST: {**document[NEST], **change}}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("eagle3/speculators", {"eagle_aux_hidden_state_layer_ids": ["a"]}, "names layers by whole numbers"),
        ("eagle3/speculators", {"eagle_aux_hidden_state_layer_ids": [1, 2, -3]}, "names layers by whole numbers"),
        ("eagle3/speculators", {"eagle_aux_hidden_state_layer_ids": "abc"}, "names layers by whole numbers"),
        ("eagle3/speculators", {"eagle_aux_hidden_state_layer_ids": 7}, "describes? no model"),
        ("eagle3/speculators", {"draft_vocab_size": 400}, "draft_vocab_size is 400, vocab_size is 320"),
        ("eagle3/speculators", {"draft_vocab_size": "x"}, "describes? no model"),
        ("eagle3/speculators", {"fc_norm": True}, "both set"),
        ("eagle3/speculators", nested(model_type="mamba"), "layers as those of 'mamba'"),
        ("eagle3/speculators", nested(num_hidden_layers=2**70), "num_hidden_layers is 1180591620717411303424"),
        ("eagle3/speculators", nested(num_hidden_layers="x"), "num_hidden_layers is 'x'"),
        ("eagle3/speculators", nested(max_position_embeddings="x"), "context_length is 'x': it must be a whole number"),
        ("eagle3/speculators", nested(hidden_act="gelu"), "hidden_act is 'gelu'"),
        ("eagle3/speculators", nested(layer_types=["sliding_attention"]), "sliding_window is None"),
        ("eagle3/specforge_wide", {"rope_scaling": None, "rope_parameters": {"rope_type": "yarn"}}, "yarn"),
        ("dflash/specforge_sliding", {"layer_types": ["full_attention"]}, "for each of 2 layers"),
        ("dflash/specforge_sliding", {"layer_types": ["full_attention", "a"]}, "full_attention or sliding_attention"),
        ("dflash/specforge_sliding", {"sliding_window": 1e300}, "need a whole number"),
        ("dflash/specforge_sliding", {"block_size": 1}, "a block of 1 leaves nothing to draft"),
        ("dflash/specforge_sliding", {"block_size": "x"}, "describes? no model"),
        ("dflash/specforge_sliding", {"dflash_config": {"target_layer_ids": [0, 5]}}, "lacks mask_token_id"),
        ("dflash/specforge_sliding", {"dflash_config": {"mask_token_id": 320, "target_layer_ids": [0, 5]}}, "is 320"),
        ("dflash/specforge_sliding", {"dflash_config": {"mask_token_id": 3, "use_swa": True}}, "use_swa"),
        ("dflash/specforge_sliding", {"dflash_config": [1]}, "describes? no model"),
        ("dflash/dflash2", {"selector_top_k": 400}, "a selector scores 400 of 320 tokens"),
    ],
    ids=lambda value: None if isinstance(value, str) and "/" in value else "",
)
def test_configs_that_describe_no_drafter_are_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(changed(name, tmp_path / "hf", change))


def test_metadata_that_describe_no_drafter_are_refused(tmp_path: Path) -> None:
    assert set(IN_GGUF) >= {"eagle3/speculators", "dflash/specforge"}
    eagle, block = (as_gguf(name, tmp_path / name) for name in ("eagle3/speculators", "dflash/specforge"))
    mask = "tokenizer.ggml.mask_token_id"
    cases: list[tuple[Path, dict[str, Any], str]] = [
        (eagle, {"keys": {"eagle3.block_count": 2}}, "drafters of this architecture have one"),
        (eagle, {"drop_keys": ["eagle3.target_layers"]}, "target_layers"),
        (eagle, {"keys": {"eagle3.rope.dimension_count": 4}}, "4 of 8 dimensions rotate"),
        (eagle, {"drop": ["d2t"]}, "output.weight"),
        (block, {"drop_keys": [mask]}, f"lack {mask}"),
        (block, {"keys": {mask: 320}}, "mask_token is 320"),
        (block, {"keys": {"dflash.block_count": 2**31}}, "2147483648 layers are declared"),
        (block, {"keys": {"dflash.block_size": 1}}, "leaves nothing to draft"),
        (block, {"keys": {"dflash.logit_scale": 2}}, "logit_scale: not supported"),
        (block, {"drop": ["enc.output_norm.weight"]}, "enc.output_norm.weight"),
    ]
    for source, change, message in cases:
        with pytest.raises(CheckpointError, match=message):
            load(edit_gguf(source, tmp_path / "bad.gguf", **change))
