"""What is installed: names at the top level, types for editors, wheels, and what other modules can do to it."""

from __future__ import annotations

import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import setuptools

import specjax

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("specjax", "checkpoints", "pallas_kernels")


def test_the_public_names_are_at_the_top_level() -> None:
    assert {"Session", "DraftConfig", "Evaluation", "find_divergence", "load", "Model"} <= set(specjax.__all__)
    assert all(getattr(specjax, name).__name__ == name for name in specjax.__all__)
    assert dir(specjax) == specjax.__all__


def test_editors_and_type_checkers_find_the_types() -> None:
    files = PROJECT["tool"]["setuptools"]["package-data"]
    for package in PACKAGES:
        assert (ROOT / package / "py.typed").is_file()
        assert "py.typed" in files[package]


def test_a_wheel_serves_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library in it belongs to a platform, and to no version of Python."""

    class OfThisPython:
        def get_tag(self) -> tuple[str, str, str]:
            return "cp311", "cp311", "linux_x86_64"

    command = ModuleType("setuptools.command.bdist_wheel")
    command.bdist_wheel = OfThisPython  # type: ignore[attr-defined]  # older setuptools have none
    settings: dict = {}
    monkeypatch.setitem(sys.modules, "setuptools.command.bdist_wheel", command)
    monkeypatch.setattr(setuptools, "setup", settings.update)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    assert settings["ext_modules"]
    assert settings["cmdclass"]["bdist_wheel"]().get_tag() == ("py3", "none", "linux_x86_64")


def test_notebooks_have_what_progress_bars_need() -> None:
    extra = PROJECT["project"]["optional-dependencies"]["notebooks"]
    assert any(requirement.startswith("ipywidgets") for requirement in extra)
