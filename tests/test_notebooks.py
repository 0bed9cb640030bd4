"""Notebooks run from top to bottom on the bundled model."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_without_errors(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel's own backend puts plots into the notebook
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # jupyter's own start-up, not ours
        nbclient = pytest.importorskip("nbclient", reason="the extra `dev` brings nbclient")
        import nbformat

        notebook = nbformat.read(path, as_version=4)
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "the plots were not drawn"
