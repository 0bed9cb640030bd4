"""Running the program inside the test's process: compiled programs are shared between tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from program import Cli, Ran
from small_model import CONFIG, agreeing_params, byte_tokenizer, write_small_model

import checkpoints
import specjax
from specjax.cli.main import main
from specjax.models.qwen3_5 import LINEAR_ATTENTION
from specjax.models.registry import FAMILIES


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command says does not depend on the environment, or on how long programs take to compile here."""
    monkeypatch.setattr("specjax.runtime.notices.DELAY", 3600.0)
    monkeypatch.delenv("SPECJAX_DEBUG", raising=False)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def run(*argv: object) -> Ran:
        capsys.readouterr()
        status = main([str(argument) for argument in argv])
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="session")
def shallow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model with one layer, whose state has to be rolled back, and the head, which has a cache."""
    path, config = tmp_path_factory.mktemp("model") / "shallow.gguf", replace(CONFIG, layer_types=(LINEAR_ATTENTION,))
    params = agreeing_params(CONFIG)
    params["target"] = {name: part for name, part in params["target"].items() if name != "layers_1"}
    checkpoints.write_gguf(path, FAMILIES, config, params, byte_tokenizer())
    return path


@pytest.fixture(scope="session")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "headless.gguf", mtp=False)


@pytest.fixture(scope="session")
def model(gguf: Path) -> specjax.Model:
    return specjax.load(gguf)
