"""Models by paths with `~`, and by names on the Hugging Face hub; nothing is downloaded here."""

from __future__ import annotations

import sys
from pathlib import Path

import huggingface_hub
import pytest
from tiny_checkpoints import make_config, write_tiny_gguf

import checkpoints
from checkpoints import CheckpointError, FormatError, quantization
from checkpoints.convert import prepare
from checkpoints.quantization import QuantizeOptions
from specjax.models.registry import FAMILIES

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, which is the home as well."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Hub:
    """Stands for `huggingface_hub.snapshot_download`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, []  # type: ignore[var-annotated]

    def __call__(self, model: str, allow_patterns: list[str]) -> str:
        self.asked.append((model, allow_patterns))
        if model != "owner/model":
            raise OSError(f"404: {model}")
        return str(self.folder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    stand_in = Hub(FIXTURES / "dense/qwen3/hf")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", stand_in)
    return stand_in


def test_a_tilde_is_the_home(here: Path) -> None:
    write_tiny_gguf(here / "m.gguf", make_config())
    assert checkpoints.describe("~/m.gguf", FAMILIES).path == here / "m.gguf"
    assert prepare("~/m.gguf", "~/copy.gguf", FAMILIES).run() == [here / "copy.gguf"]
    assert quantization.prepare("~/m.gguf", "~/q.gguf", FAMILIES, QuantizeOptions("Q8_0")).run() == here / "q.gguf"
    with pytest.raises(CheckpointError, match="is the source itself"):
        prepare("~/m.gguf", here / "m.gguf", FAMILIES)
    with pytest.raises(FormatError, match=f"{here}/absent.gguf: no such file or directory$"):
        checkpoints.load("~/absent.gguf", FAMILIES)


def test_a_name_of_the_hub_is_downloaded(here: Path, hub: Hub) -> None:
    assert checkpoints.describe("owner/model", FAMILIES).path == hub.folder
    ((model, wanted),) = hub.asked
    assert model == "owner/model"
    assert {"*.json", "*.safetensors"} <= set(wanted)
    hub.folder = FIXTURES / "dense/qwen3"
    assert checkpoints.describe("owner/model/model.gguf", FAMILIES).path == hub.folder / "model.gguf"
    assert hub.asked[-1] == ("owner/model", ["model.gguf"])
    with pytest.raises(FormatError, match=r"the model owner/model of the Hugging Face hub has no such file"):
        checkpoints.load("owner/model/big-00001-of-00003.gguf", FAMILIES)
    assert hub.asked[-1] == ("owner/model", ["big-*-of-00003.gguf"])


def test_what_the_hub_does_not_give_is_said(here: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        FormatError, match=r"owner/other: no such file or directory, and the Hugging .*: 404: owner/other"
    ):
        checkpoints.load("owner/other", FAMILIES)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(
        FormatError, match=r"owner/model: no such file or directory; if .*: pip install huggingface_hub"
    ):
        checkpoints.load("owner/model", FAMILIES)


@pytest.mark.parametrize(
    "path", ["m.gguf", "./owner/model", "../owner/model", "/owner/model", "there/model", "a/b/c", "a/m.gguf"]
)
def test_what_can_only_be_a_path_is_not_asked_for(path: str, here: Path, hub: Hub) -> None:
    (here / "there").mkdir()
    with pytest.raises(FormatError, match=r"no such file or directory$"):
        checkpoints.load(path, FAMILIES)
    assert hub.asked == []
