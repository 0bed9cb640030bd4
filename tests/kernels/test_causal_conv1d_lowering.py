"""The kernels of the causal convolution become programs for their devices on a machine that has none."""

import jax
import jax.numpy as jnp
import pytest
from lowering import GENERATIONS, compiled_for_tpu, kernel_calls, lowered, needs_jax_triton

from pallas_kernels.causal_conv1d import causal_conv1d, pallas_tpu

QWEN3_6_27B = 10240
CASES = (
    (2, 4, QWEN3_6_27B, jnp.bfloat16),
    (1, 600, QWEN3_6_27B, jnp.bfloat16),
    (1, 1, 256, jnp.float32),
)
"""B, T, C and dtype: verification, prefill in blocks, and a small model."""


def shapes(n_rows, n_tokens, n_channels, dtype, width=4):
    """Of x, weight and window."""
    return (
        jax.ShapeDtypeStruct((n_rows, n_tokens, n_channels), dtype),
        jax.ShapeDtypeStruct((n_channels, width), jnp.float32),
        jax.ShapeDtypeStruct((n_rows, width - 1, n_channels), dtype),
    )


def program(impl):
    def convolve(x, weight, window):
        return causal_conv1d(x, weight, window, impl=impl)

    return convolve


@pytest.mark.parametrize(("impl", "platform"), [("pallas_tpu", "tpu"), ("pallas_gpu", "cuda")])
@pytest.mark.parametrize(("n_rows", "n_tokens", "n_channels", "dtype"), CASES)
def test_the_kernel_lowers(impl, platform, n_rows, n_tokens, n_channels, dtype):
    module = lowered(program(impl), platform, *shapes(n_rows, n_tokens, n_channels, dtype))
    assert len(kernel_calls(module, platform)) == 1


@needs_jax_triton
@pytest.mark.parametrize("capability", [80, 90, 120])
@pytest.mark.parametrize(("n_rows", "n_tokens", "n_channels", "dtype"), CASES)
def test_the_triton_kernel_is_machine_code_with_its_sums_in_registers(
    capability, n_rows, n_tokens, n_channels, dtype, triton_code
):
    triton_code(capability, program("triton"), *shapes(n_rows, n_tokens, n_channels, dtype))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("n_rows", "n_tokens", "n_channels", "dtype"), [*CASES, (2, 40, 200, jnp.float16)])
@pytest.mark.parametrize("width", [4, 17])
def test_the_tpu_compiler_accepts_the_kernel(generation, n_rows, n_tokens, n_channels, dtype, width):
    compiled_for_tpu(program("pallas_tpu"), generation, *shapes(n_rows, n_tokens, n_channels, dtype, width))


@pytest.mark.tpu_compiler
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_tpu_compiler_accepts_every_candidate(generation):
    n_tokens = 2048
    inputs = jax.ShapeDtypeStruct((1, n_tokens + 3, QWEN3_6_27B), jnp.float32)
    weight = jax.ShapeDtypeStruct((QWEN3_6_27B, 4), jnp.float32)
    for config in pallas_tpu.candidates({"B": 1, "T": n_tokens, "C": QWEN3_6_27B, "W": 4}):

        def convolve(inputs, weight, config=config):
            return pallas_tpu.convolve(inputs, weight, activation="silu", dtype=jnp.float32, config=config)

        compiled_for_tpu(convolve, generation, inputs, weight)
