"""What tests of kernels share."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from gpu_compiler import Assembled, assembled
from lowering import lowered, triton_calls

from pallas_kernels import native, triton_launch
from pallas_kernels.native import library


@pytest.fixture(autouse=True, scope="module")
def _blocks_and_warpgroups_share_a_program() -> Iterator[None]:
    """JAX's interpreter of Mosaic GPU compiles its program of a kernel anew for each block and each warpgroup.

    Here it does so once for each kernel that is traced. They run as before, each warpgroup in a thread of its own.
    """
    from jax._src.pallas.mosaic.interpret import thread_map

    programs: dict[Any, Any] = {}
    lock = threading.Lock()

    def run(jaxpr: Any, consts: Any, *given: Any) -> None:
        with lock:
            if jaxpr not in programs:
                kernel = jax.jit(lambda consts, *given: jax.core.eval_jaxpr(jaxpr, consts, *given))
                programs[jaxpr] = kernel.lower(consts, *given).compile()
        programs[jaxpr](consts, *given)

    with pytest.MonkeyPatch.context() as patch:
        if hasattr(thread_map, "_run_jaxpr"):  # it is JAX's own; without it tests take longer
            patch.setattr(thread_map, "_run_jaxpr", run)
        yield


@pytest.fixture(autouse=True, scope="module")
def _kernels_talk_to_their_interpreter_in_numpy() -> Iterator[None]:
    """JAX makes an array on its device of every number that Mosaic GPU's interpreter is told, which then asks for it.

    Most of what an interpreted load or store takes is that. Here it is told arrays of numpy, its own copies.
    """
    from jax._src import callback as callbacks

    as_it_is = getattr(callbacks, "io_callback_impl", None)

    def impl(*given: Any, callback: Any, **settings: Any) -> Any:
        told = getattr(callback, "callback_func", None)
        if not getattr(getattr(told, "func", told), "__module__", "").startswith("jax._src.pallas.mosaic"):
            return as_it_is(*given, callback=callback, **settings)
        return jax.tree.map(np.asarray, callback(*map(np.array, given)))

    with pytest.MonkeyPatch.context() as patch:
        if as_it_is is not None:  # it is JAX's own; without it tests take longer
            patch.setattr(callbacks, "io_callback_impl", impl)
        yield


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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test's own."""
    monkeypatch.setenv("SPECJAX_CACHE", str(tmp_path))
    return tmp_path
