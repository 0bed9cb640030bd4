"""What is installed: names at the top level, types for editors, wheels, and what other modules can do to it."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import setuptools

import specjax
from specjax.models import registry

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ("specjax", "checkpoints", "pallas_kernels")


def test_the_public_names_are_at_the_top_level() -> None:
    assert {"Session", "DraftConfig", "Evaluation", "find_divergence", "load", "Model"} <= set(specjax.__all__)
    assert all(getattr(specjax, name).__name__ == name for name in specjax.__all__ if name != "FAMILIES")
    assert specjax.FAMILIES is registry.FAMILIES
    assert dir(specjax) == sorted(specjax.__all__)


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


def test_a_wheel_has_the_files_of_the_servers_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    told = {"packages": ["specjax"], "package_data": PROJECT["tool"]["setuptools"]["package-data"]}
    command = setuptools.Distribution(told).get_command_obj("build_py")
    command.ensure_finalized()
    packed = {Path(folder, name).resolve() for _, folder, _, names in command.data_files for name in names}
    files = set((ROOT / "specjax" / "serving" / "page").iterdir())
    assert ROOT / "specjax" / "serving" / "page" / "index.html" in files
    assert files <= packed


def test_notebooks_have_what_progress_bars_need() -> None:
    extra = PROJECT["project"]["optional-dependencies"]["notebooks"]
    assert any(requirement.startswith("ipywidgets") for requirement in extra)


@pytest.mark.parametrize("name", ["checkpoints", "pallas_kernels"])
def test_a_module_of_the_users_that_hides_one_of_ours_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("mine = 1\n")
    for module in ("-c", "import specjax"), ("-m", "specjax", "--help"):
        command = [sys.executable, *module]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        said = f"ImportError: specjax is installed with a package {name}, but Python finds {tmp_path / name}.py"
        assert said in ran.stderr.splitlines()[-1]
        assert "rename that, or start from another folder" in ran.stderr
