"""What tests of the native kernels share."""

import pytest

from pallas_kernels import native
from pallas_kernels.native import library


@pytest.fixture(params=native.instruction_sets())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A test with this runs with each instruction set that this processor has."""
    monkeypatch.setenv(library.ISA_VARIABLE, request.param)
    return request.param
