"""The rounds of a model, compiled for a GPU that need not be there: their kernels are in CUDA graphs.

A kernel whose argument XLA hands over as a slice of what it is cut from stays outside. It ends a graph, and the host
launches it.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from gpu_compiler import without_mosaic_gpu_compiler

from specjax.state import KVTypes

pytestmark = [
    pytest.mark.gpu_compiler,
    pytest.mark.skipif(bool(without_mosaic_gpu_compiler()), reason=str(without_mosaic_gpu_compiler())),
]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Any:
    """benchmarks/gpu_launches.py, with the assembler that Triton brings."""
    from triton.backends.nvidia.compiler import get_ptxas

    monkeypatch.setenv("PATH", os.pathsep.join([os.environ["PATH"], str(Path(get_ptxas(90).path).parent)]))
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("gpu_launches")


@pytest.mark.parametrize(("drafts", "by_host", "graphs"), [(0, 2, 1), (3, 7, 4)])
def test_the_host_launches_little_in_a_round(
    drafts: int, by_host: int, graphs: int, launches: Any, tmp_path: Path
) -> None:
    from programs import Outlined, gpu_devices

    (device,) = gpu_devices()
    models = launches.models_of("bundled", "Q8_0", None)
    given = models if drafts else models._replace(drafter=None)
    kv_types = KVTypes("bf16", "bf16")
    model = Outlined.of(given, "gpu", device=device, max_drafts=drafts, kv_types=kv_types, rule="greedy")
    turns = max(drafts - 1, 0)
    thunks, _ = launches.compiled(model.rounds(1, 4096), tmp_path)
    own = launches.round_in(thunks, turns)
    assert launches.total(own, launches.pallas, turns) > 20
    assert launches.total(own, launches.by_host, turns) <= by_host
    assert launches.total(own, launches.graphs, turns) <= graphs
