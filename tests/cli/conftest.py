"""Running the program inside the test's process: compiled programs are shared between tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from program import Cli, Ran
from small_model import write_small_model

import specjax
from specjax.cli.main import main


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
def headless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model") / "headless.gguf", mtp=False)


@pytest.fixture(scope="session")
def model(gguf: Path) -> specjax.Model:
    return specjax.load(gguf)
