"""Notebooks run from top to bottom on the bundled model."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
QUICK = ("01_quickstart",)
"""The others build many programs, and take up to a minute each."""

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@each_notebook
def test_notebook_is_listed_and_kept_without_outputs(path: Path) -> None:
    assert f"`notebooks/{path.name}`" in (path.parents[1] / "docs/index.md").read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    kept = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count")]
    assert not kept, f"clear the outputs of {', '.join(kept)}"


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=[pytest.mark.slow] * (path.stem not in QUICK)) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_notebook_runs_without_errors(path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECJAX_CACHE", str(programs))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own backend puts plots into the notebook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jupyter's own start-up, not ours
        nbclient = pytest.importorskip("nbclient", reason="the extra `dev` brings nbclient")
        import nbformat

        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "the plots were not drawn"
