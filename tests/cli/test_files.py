"""Commands whose product is a file or a listing."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from program import Cli
from small_model import CONFIG

import specjax
from specjax.state import KVTypes


def test_logits_are_the_models(cli: Cli, gguf: Path, model: specjax.Model, tmp_path: Path) -> None:
    out = tmp_path / "logits.npy"
    assert cli("logits", "--model", gguf, "--tokens", "1,2,3", "--out", out).status == 0
    logits = np.load(out)
    assert logits.dtype == np.float32
    np.testing.assert_array_equal(logits, model.logits([1, 2, 3]))

    text = tmp_path / "prompt.txt"
    text.write_text("def f(")
    assert cli("logits", "--model", gguf, "--prompt-file", text, "--out", out).status == 0
    np.testing.assert_array_equal(np.load(out), model.logits("def f("))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logits.npy", "prompt.txt"]


@pytest.mark.parametrize("piped", [False, True])
def test_a_prompt_file_is_taken_byte_for_byte(
    piped: bool, cli: Cli, gguf: Path, model: specjax.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, out = b"a\r\nb\rc\n", tmp_path / "logits.npy"
    (tmp_path / "prompt.txt").write_bytes(text)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))
    source = "-" if piped else tmp_path / "prompt.txt"
    assert cli("logits", "--model", gguf, "--prompt-file", source, "--out", out).status == 0
    np.testing.assert_array_equal(np.load(out), model.logits(text.decode()))


def test_the_next_logits_are_the_last_row_of_all_logits(model: specjax.Model) -> None:
    last = {}
    for kind in ("f32", "q4_0"):
        last[kind] = model.logits([1, 2, 3], kv_types=KVTypes(kind, kind))[-1]
        np.testing.assert_allclose(model.next_logits([1, 2, 3], kv_types=KVTypes(kind, kind)), last[kind], atol=1e-4)
    np.testing.assert_array_equal(model.logits([1, 2, 3])[-1], last["f32"])
    assert np.abs(last["f32"] - last["q4_0"]).max() > 5e-3, "caches of another type give other logits"


def test_a_prompt_may_fill_the_context_when_nothing_is_to_follow(model: specjax.Model) -> None:
    whole = [1] * CONFIG.context_length
    assert model.logits(whole).shape == (CONFIG.context_length, CONFIG.vocab_size)
    with pytest.raises(specjax.PromptError, match="129 tokens; the model's context of 128 is shorter"):
        model.logits([*whole, 1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "l.npy"), "no prompt"),
        (("--tokens", "1,999", "--out", "l.npy"), "outside the vocabulary"),
        (("--tokens", "1", "--out", "absent/l.npy"), "there is no folder absent"),
        (("--tokens", "1"), "required: --out"),
    ],
)
def test_refused_logits_leave_no_file(
    options: tuple, message: str, cli: Cli, gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in cli("logits", "--model", gguf, *options).error
    assert not list(tmp_path.iterdir())


def test_inspect_tells_config_tensors_and_head(cli: Cli, gguf: Path, headless: Path) -> None:
    ran = cli("inspect", gguf, "--tensors", "--json")
    document = json.loads(ran.out)
    assert ran.status == 0
    assert document["architecture"] == "qwen35"
    assert document["config"]["width"] == CONFIG.width
    assert document["mtp"]
    assert document["problems"] is None
    assert document["num_tensors"] == len(document["tensors"])
    assert sum(tensor["num_bytes"] for tensor in document["tensors"]) == document["bytes"]
    assert {tensor["type"] for tensor in document["tensors"]} == document["types"].keys()
    parameters = {tensor["name"]: tensor["parameters"] for tensor in document["tensors"]}
    assert parameters["token_embd.weight"] == ["target.embed.weight"]
    assert parameters["blk.2.nextn.eh_proj.weight"] == ["mtp.eh_proj.weight"]

    report = cli("inspect", gguf, "--tensors").out
    for part in ("MTP head", "yes", "layer_types", "1 linear_attention, 1 full_attention", "mtp.eh_proj.weight"):
        assert part in report
    assert not any(line.endswith(" ") for line in report.splitlines())
    assert "no: plain decoding, unless a drafter is given" in cli("inspect", headless).out
