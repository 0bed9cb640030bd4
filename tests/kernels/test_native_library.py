"""The native library: built where it can be, done without where it cannot, and safe on few threads."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from test_quant_formats import random_blocks

from pallas_kernels import native
from pallas_kernels.matmul import explain, from_blocks, prepare, quant_matmul
from pallas_kernels.native import library


def test_the_library_is_built_where_there_is_a_compiler() -> None:
    known = platform.system() in ("Linux", "Darwin") and platform.machine() in ("x86_64", "aarch64", "arm64")
    if not known or shutil.which("c++") is None:
        pytest.skip("no compiler, or a machine without kernels")
    assert native.reason() is None
    assert native.instruction_sets()[0] == "portable"


def test_amx_is_passed_over_where_linux_refuses_it() -> None:
    """As it does in a process that has a stack for signals without room for tiles."""
    if "amx" not in native.instruction_sets():
        pytest.skip("no AMX that works")
    program = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("begin", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
from pallas_kernels import native
print(*native.instruction_sets())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["portable", "avx2", "avx512vnni"]


def test_without_the_library_everything_runs_in_xla(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocks = from_blocks(random_blocks("Q4_0", 20, 4), "Q4_0")
    panels = prepare(blocks)
    x = np.random.default_rng(1).normal(size=(2, blocks.width)).astype(np.float32)
    monkeypatch.setattr(library, "_PATH", tmp_path / "libspecjax.so")
    library._load.cache_clear()
    try:
        assert not native.available()
        assert re.search("cpu_native +passed over: the native kernels were not built", explain(x, blocks))
        assert prepare(blocks) is blocks
        got, want = jax.jit(lambda x, *weights: [quant_matmul(x, each) for each in weights])(x, panels, blocks)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    finally:
        library._load.cache_clear()


def test_a_library_for_a_later_xla_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """jax would refuse its functions, and with them to start."""
    header = tmp_path / "xla/ffi/api/c_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 1\n")
    monkeypatch.setattr("jax.ffi.include_dir", lambda: str(tmp_path))
    library._load.cache_clear()
    try:
        assert re.search(
            r"was built for XLA's FFI \(0, \d+\), which this jaxlib has in \(0, 1\)", native.reason() or ""
        )
    finally:
        library._load.cache_clear()


def test_a_library_of_other_sources_is_announced_once_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = from_blocks(random_blocks("Q4_0", 20, 4), "Q4_0"), np.ones((2, 128), np.float32)
    digests: list[str] = []
    monkeypatch.setattr(library.sources, "digest", lambda: digests.append("") or "later")
    library._load.cache_clear()
    try:
        with pytest.warns(RuntimeWarning, match=r"passed over: libspecjax.so was built .* run `pip install -e .` in /"):
            assert not native.available()
        assert re.search("cpu_native +passed over: libspecjax.so was built from other sources", explain(x, weight))
        assert prepare(weight) is weight
        assert len(digests) == 1
    finally:
        library._load.cache_clear()


def test_sources_that_are_not_there_have_no_digest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed package has none, and nothing is compared."""
    monkeypatch.setattr(library.sources, "SOURCES", tmp_path / "csrc")
    assert library.sources.digest() is None


STRESS = """
from concurrent.futures import ThreadPoolExecutor

import jax, jax.numpy as jnp, numpy as np
from pallas_kernels.matmul import from_blocks, prepare, quant_matmul

rng = np.random.default_rng(0)
weights = [prepare(from_blocks(jnp.asarray(rng.integers(0, 64, (512, 34 * 16), np.uint8)), "Q8_0")) for _ in range(12)]
x = jnp.ones((4, 512))
run = jax.jit(lambda x, weights: [quant_matmul(x + i, weight) for i, weight in enumerate(weights)])
chain = jax.jit(lambda x, weights: [x := jnp.tanh(quant_matmul(x, weight)) for weight in weights])
for each in (run, chain):
    first = each(x, weights)
    with ThreadPoolExecutor(2) as callers:
        results = list(callers.map(lambda _: each(x, weights), range(100)))
    assert all(np.array_equal(a, b) for result in results for a, b in zip(first, result))
"""


@pytest.mark.skipif(not native.available(), reason="needs the native kernels")
@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.slow), 8])
def test_many_products_at_once_never_wait_for_threads_that_are_busy(threads: int) -> None:
    """XLA starts independent calls at the same time; NPROC is how many threads it makes. In a chain threads that have
    helped with a call are given the next one, of either caller.
    """
    environment = os.environ | {"NPROC": str(threads), "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", STRESS], env=environment, check=True, timeout=120)
