"""Triton kernels are launched through jax-triton, or run by Triton's interpreter on a CPU."""

import re
from importlib.metadata import PackageNotFoundError, version

import gpu_compiler
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lowering import lowered, needs_jax_triton, needs_triton, triton_calls

from pallas_kernels import triton_interpreter, triton_launch
from pallas_kernels.triton_launch import bfloat16_parts, launch, missing, power_of_two

N, PROGRAMS = 8, 5


def halve_and_count(x, count, *, interpret, step=3):
    import triton_examples

    results = [jax.ShapeDtypeStruct(x.shape, jnp.float32), jax.ShapeDtypeStruct((PROGRAMS,), jnp.float32)]
    sizes = {"grid": (PROGRAMS,), "warps": 1, "N": N, "STEP": step}
    return launch(triton_examples.halve_and_count, [x], [count], results, interpret=interpret, **sizes)


@needs_triton
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "uint8"])
def test_the_interpreter_gives_what_was_changed_and_the_results(dtype):
    x = jnp.asarray(np.random.default_rng(0).integers(0, 100, (PROGRAMS, N)), dtype)
    count = jnp.arange(PROGRAMS, dtype=jnp.int32)
    changed, halves, total = jax.jit(lambda x, count: halve_and_count(x, count, interpret=True))(x, count)
    np.testing.assert_array_equal(changed, [0, 4, 2, 6, 4])
    np.testing.assert_array_equal(halves, np.asarray(x, np.float32) / 2)
    np.testing.assert_array_equal(total, np.asarray(x, np.float32).sum(axis=1) / 2)
    np.testing.assert_array_equal(count, range(PROGRAMS))


def move_one(x, whole, part, *, interpret):
    import triton_examples

    results = [jax.ShapeDtypeStruct(x.shape, jnp.float32)]
    sizes = {"grid": (1,), "warps": 1, "N": N}
    return launch(triton_examples.move_one, [x], [whole, part], results, interpret=interpret, **sizes)


@needs_triton
def test_the_interpreter_changes_several_arrays():
    x, whole, part = jnp.full(N, 100.0), jnp.arange(N, dtype=jnp.int32), jnp.arange(N) / 4
    new_whole, new_part, total = move_one(x, whole, part, interpret=True)
    np.testing.assert_array_equal(new_whole, np.arange(N) - 1)
    np.testing.assert_array_equal(new_part, np.arange(N) / 4 + 1)
    np.testing.assert_array_equal(total, 100 + 1.25 * np.arange(N))


def run(name, x):
    import triton_examples

    (out,) = launch(getattr(triton_examples, name), [x], [], [x], grid=(1,), warps=1, interpret=True, N=N)
    return out


@needs_triton
def test_the_interpreter_finds_out_what_reads_and_writes_beside_arrays():
    x = jnp.arange(N, dtype=jnp.float32)
    np.testing.assert_array_equal(run("read_beside", x), [*range(1, N), np.nan])
    with pytest.raises(Exception, match=r"triton_examples.write_beside.*(\n.*)*written beside an array fp32 \[8\]"):
        jax.block_until_ready(run("write_beside", x))


@needs_triton
def test_a_kernel_that_fails_in_the_interpreter_says_why_and_others_run_on():
    x = jnp.arange(N, dtype=jnp.float32)
    with pytest.raises(Exception, match=r"triton_examples.fail.*(\n.*)*incompatible"):
        jax.block_until_ready(run("fail", x))
    np.testing.assert_array_equal(run("read_beside", x)[:-1], range(1, N))


@needs_triton
def test_the_answer_to_a_call_that_was_interrupted_is_not_given_to_the_next(monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    def read_beside(x):
        request = ("triton_examples", "read_beside"), [x], [], [(x.shape, x.dtype)], (1,), {"N": N}
        return triton_interpreter.run(*request)[0][:-1]

    x = np.arange(N, dtype=np.float32)
    with monkeypatch.context() as context:
        context.setattr(triton_interpreter.pickle, "load", interrupt)
        with pytest.raises(KeyboardInterrupt):
            read_beside(x)
    np.testing.assert_array_equal(read_beside(10 * x), 10 * x[1:])


@needs_jax_triton
def test_a_program_has_machine_code_and_changes_arrays_in_place(tmp_path):
    if jax.default_backend() == "gpu":
        pytest.skip("Triton compiles for the GPU that is there")
    shapes = [jax.ShapeDtypeStruct((PROGRAMS, N), jnp.bfloat16), jax.ShapeDtypeStruct((PROGRAMS,), jnp.int32)]
    (call,) = triton_calls(lowered(lambda *given: halve_and_count(*given, interpret=False), "cuda", *shapes))
    assert "output_operand_alias" in call
    code = gpu_compiler.assembled(call, tmp_path)
    assert code.target == "sm_80"
    assert 0 < code.registers <= 64
    assert code.spilled == 0


@needs_jax_triton
def test_several_arrays_are_changed_in_place_each_by_its_own_name():
    shapes = [jax.ShapeDtypeStruct((N,), dtype) for dtype in (jnp.float32, jnp.int32, jnp.float32)]
    (call,) = triton_calls(lowered(lambda *given: move_one(*given, interpret=False), "cuda", *shapes))
    assert call.count("output_operand_alias<") == 2


def _jax_triton() -> tuple[int, ...]:
    try:
        return tuple(map(int, version("jax-triton").split(".")[:2]))
    except PackageNotFoundError:
        return (0,)


@needs_jax_triton
@pytest.mark.skipif(_jax_triton() < (0, 4), reason="jax-triton before 0.4 does not ask for a version of PTX")
@pytest.mark.parametrize(("capability", "newest"), [(80, 88), (90, 88), (100, 90)])
def test_every_cuda_that_jax_takes_reads_the_programs(capability, newest, monkeypatch):
    if jax.default_backend() == "gpu":
        pytest.skip("Triton compiles for the GPU that is there")
    monkeypatch.setattr(triton_launch, "OLDEST", capability)
    shapes = [jax.ShapeDtypeStruct((PROGRAMS, N), jnp.bfloat16), jax.ShapeDtypeStruct((PROGRAMS,), jnp.int32)]
    (call,) = triton_calls(lowered(lambda *given: halve_and_count(*given, interpret=False), "cuda", *shapes))
    major, minor = re.search(rb"\.version (\d+)\.(\d)", gpu_compiler._call_message(call)).groups()
    assert int(major + minor) <= newest


@needs_jax_triton
@pytest.mark.parametrize(
    ("said", "fits"), [(None, True), ("7.5", False), ("8.0", True), ("9.0", True), ("12.0", True), ("gfx942", False)]
)
def test_gpus_without_what_the_kernels_need_are_refused(said, fits, monkeypatch):
    monkeypatch.setattr("pallas_kernels.capability.device_capability", lambda: said)
    refusal = missing(interpreted=False)
    assert (refusal is None) == fits
    assert fits or refusal == f"made for NVIDIA GPUs of compute capability 8.0 and later; this one says {said}"
    assert missing(interpreted=True) is None


@pytest.mark.parametrize(("dtype", "count"), [("bfloat16", 1), ("float16", 2), ("float32", 3)])
def test_parts_in_bfloat16_add_up_to_every_bit(dtype, count):
    scales = np.array([[1e30], [1.0], [1e-25]] if dtype == "float32" else [[1.0]])
    x = jnp.asarray(np.random.default_rng(1).normal(size=(3, 512)) * scales, dtype)
    x = x.at[0, 0].set(jnp.inf).at[0, 1].set(0)
    split = jax.jit(bfloat16_parts, static_argnums=1)(x, count)
    assert split.dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(split, np.float64).sum(axis=0), np.asarray(x, np.float64))
    assert not np.array_equal(np.asarray(split[: count - 1], np.float64).sum(axis=0), np.asarray(x, np.float64))


def test_blocks_are_powers_of_two():
    assert [power_of_two(n) for n in (1, 2, 3, 24, 64, 65)] == [1, 2, 4, 32, 64, 128]
