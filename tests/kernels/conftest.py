"""What tests of kernels share."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest
from gpu_compiler import Assembled, assembled
from lowering import lowered, triton_calls

from pallas_kernels import native, triton_launch
from pallas_kernels.native import library


@pytest.fixture(params=native.instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A test with this runs with each instruction set that this processor has."""
    monkeypatch.setenv(library.ISA_VARIABLE, request.param)
    return request.param


@pytest.fixture
def triton_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Assembled]:
    """Makes machine code for a compute capability (times ten) of the one Triton kernel that a program calls, and holds
    it to registers. The program follows, and the shapes of its arguments.
    """
    if jax.default_backend() == "gpu":
        pytest.skip("Triton compiles for the GPU that is there")

    def make(capability: int, run: Callable[..., Any], *given: Any) -> Assembled:
        monkeypatch.setattr(triton_launch, "OLDEST", capability)
        (call,) = triton_calls(lowered(run, "cuda", *given))
        code = assembled(call, tmp_path)
        assert code.target.startswith(f"sm_{capability}")
        assert code.spilled == 0
        return code

    return make
