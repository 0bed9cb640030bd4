"""The Pallas kernels become programs for their devices on a machine that has none."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gpu_compiler import assembled
from lowering import GENERATIONS, compiled_for_tpu, kernel_calls, lowered, needs_jax_triton, triton_calls

from pallas_kernels import gated_delta
from pallas_kernels.gated_delta import triton_recurrence
from pallas_kernels.gated_delta.implementations import OPERATIONS
from pallas_kernels.gated_delta.tokens import Tokens

QWEN3_6_27B = {"hk": 16, "hv": 48, "width": 128}
SMALL = {"hk": 2, "hv": 6, "width": 64}
ODD = {"hk": 3, "hv": 3, "width": 24}
PLATFORMS = {"pallas_tpu": "tpu", "pallas_gpu": "cuda", "pallas_gpu_prefill": "cuda"}
CHUNKED = ("pallas_tpu", "pallas_gpu_prefill", "triton_prefill")
"""The kernels that take prompts."""
NAMES = [(name, impl) for name, operation in OPERATIONS.items() for impl in operation.names()]
KERNELS = [(name, impl) for name, impl in NAMES if impl in PLATFORMS]
TRITON = [(name, impl) for name, impl in NAMES if impl in ("triton", "triton_prefill")]
N_ROWS, N_SLOTS = 2, 4


def call(operation, impl, head_map, *arguments):
    """The operation with its last argument as n_valid, or as commit's n."""
    *arguments, counts = arguments
    if operation == "commit":
        state, *records = arguments
        return gated_delta.commit(state, gated_delta.Records(*records), counts, impl=impl, head_map=head_map)
    return getattr(gated_delta, operation)(*arguments, n_valid=counts, impl=impl, head_map=head_map)


def arguments(operation, impl, n_tokens, hk, hv, width, dtype):
    """Shapes of what `call` takes; kernels for prompts get sixteen times the tokens, for several chunks."""
    n_tokens *= 16 if operation == "prefill" and impl in CHUNKED else 1

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((N_ROWS, *shape), dtype)

    keys, values = array(n_tokens, hk, width, dtype=dtype), array(n_tokens, hv, width, dtype=dtype)
    scalars, state, counts = array(n_tokens, hv), array(hv, width, width), array(dtype=jnp.int32)
    if operation == "commit":
        return state, keys, array(n_tokens, hv, width), scalars, counts
    inputs = (keys, keys, values, scalars, scalars)
    if operation == "verify_snapshots":
        return *inputs, array(N_SLOTS, hv, width, width), counts, counts
    return *inputs, state, counts


@pytest.mark.parametrize(("operation", "impl"), KERNELS)
@pytest.mark.parametrize(
    ("shape", "n_tokens", "head_map", "dtype"),
    [(QWEN3_6_27B, 16, "tiled", jnp.bfloat16), (SMALL, 1, "grouped", jnp.float32)],
)
def test_kernels_lower_and_write_the_state_in_place(operation, impl, shape, n_tokens, head_map, dtype):
    given = arguments(operation, impl, n_tokens, **shape, dtype=dtype)
    platform = PLATFORMS[impl]
    calls = kernel_calls(lowered(functools.partial(call, operation, impl, head_map), platform, *given), platform)
    assert len(calls) == 1
    assert ("output_operand_alias" in calls[0]) == (operation != "verify")


@needs_jax_triton
@pytest.mark.parametrize(("operation", "impl"), TRITON)
@pytest.mark.parametrize(
    ("capability", "shape", "n_tokens", "head_map", "dtype"),
    [
        (80, QWEN3_6_27B, 16, "tiled", jnp.bfloat16),
        (86, SMALL, 1, "grouped", jnp.float32),
        (89, ODD, 4, "tiled", jnp.float16),
        (100, SMALL, 4, "tiled", jnp.bfloat16),
        (120, QWEN3_6_27B, 4, "grouped", jnp.bfloat16),
    ],
)
def test_triton_kernels_are_machine_code_that_keeps_the_state_in_registers(
    operation, impl, capability, shape, n_tokens, head_map, dtype, triton_code
):
    given = arguments(operation, impl, n_tokens, **shape, dtype=dtype)
    triton_code(capability, functools.partial(call, operation, impl, head_map), *given)


@needs_jax_triton
@pytest.mark.parametrize(("operation", "impl"), TRITON)
def test_triton_kernels_write_the_state_in_place(operation, impl):
    given = arguments(operation, impl, 4, **SMALL, dtype=jnp.float32)
    (only,) = triton_calls(lowered(functools.partial(call, operation, impl, "tiled"), "cuda", *given))
    assert ("output_operand_alias" in only) == (operation != "verify")


@needs_jax_triton
@pytest.mark.parametrize("config", triton_recurrence.candidates({"Dk": 128, "Dv": 128}), ids=str)
def test_every_candidate_in_triton_fits_into_registers(config, tmp_path):
    *given, counts = arguments("verify_snapshots", "triton", 4, **QWEN3_6_27B, dtype=jnp.bfloat16)

    def run(*given):
        options = {"head_map": "tiled", "scale": 0.1, "config": config}
        return triton_recurrence.verify_snapshots(Tokens(*given[:5]), *given[5:], **options)

    (only,) = triton_calls(lowered(run, "cuda", *given, counts))
    assert assembled(only, tmp_path).spilled == 0


@pytest.mark.parametrize(
    ("operation", "impl"),
    [*KERNELS, *(pytest.param(*each, marks=needs_jax_triton) for each in TRITON)],
)
def test_a_kernel_of_another_machine_says_so_here(operation, impl):
    if jax.default_backend() != "cpu":
        pytest.skip("states what a CPU machine answers")
    shapes = arguments(operation, impl, 1, **SMALL, dtype=jnp.float32)
    with pytest.raises((ValueError, NotImplementedError), match=r"(?i)cpu"):
        call(operation, impl, "tiled", *(np.zeros(x.shape, x.dtype) for x in shapes))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("operation", [operation for operation, impl in KERNELS if impl == "pallas_tpu"])
@pytest.mark.parametrize(
    ("shape", "n_tokens", "head_map", "dtype"),
    [
        (QWEN3_6_27B, 4, "tiled", jnp.bfloat16),
        (QWEN3_6_27B, 16, "grouped", jnp.float32),
        (SMALL, 3, "tiled", jnp.float32),
    ],
)
def test_the_tpu_compiler_accepts_the_kernels_and_copies_no_state(
    generation, operation, shape, n_tokens, head_map, dtype
):
    given = arguments(operation, "pallas_tpu", n_tokens, **shape, dtype=dtype)
    run = functools.partial(call, operation, "pallas_tpu", head_map)
    memory = compiled_for_tpu(run, generation, *given).memory_analysis()
    assert memory.temp_size_in_bytes < 2**19  # the states of the model's layer are 6 MiB
