"""The Pallas kernels become programs for their devices on a machine that has none."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax import export

from pallas_kernels import gated_delta

QWEN3_6_27B = {"hk": 16, "hv": 48, "width": 128}
SMALL = {"hk": 2, "hv": 6, "width": 64}


def arguments(n_rows, n_tokens, n_slots, hk, hv, width, dtype):
    """Shapes of verify_snapshots' arguments and of n_valid."""

    def array(*shape, dtype=jnp.float32):
        return jax.ShapeDtypeStruct((n_rows, *shape), dtype)

    keys, values = array(n_tokens, hk, width, dtype=dtype), array(n_tokens, hv, width, dtype=dtype)
    scalars = array(n_tokens, hv)
    slots = array(n_slots, hv, width, width)
    return (keys, keys, values, scalars, scalars, slots, array(dtype=jnp.int32)), array(dtype=jnp.int32)


def program(impl, head_map):
    def verify(arguments, n_valid):
        return gated_delta.verify_snapshots(*arguments, n_valid=n_valid, impl=impl, head_map=head_map)

    return jax.jit(verify)


@pytest.mark.parametrize(
    ("impl", "platform", "target"), [("pallas_tpu", "tpu", "tpu_custom_call"), ("pallas_gpu", "cuda", "mosaic_gpu")]
)
@pytest.mark.parametrize(
    ("shape", "n_tokens", "head_map", "dtype"),
    [(QWEN3_6_27B, 4, "tiled", jnp.bfloat16), (SMALL, 1, "grouped", jnp.float32)],
)
def test_snapshots_lower_and_write_the_slots_in_place(impl, platform, target, shape, n_tokens, head_map, dtype):
    given = arguments(2, n_tokens, 4, **shape, dtype=dtype)
    exported = export.export(program(impl, head_map), platforms=[platform])(*given)
    module = exported.mlir_module()
    calls = [line for line in module.splitlines() if target in line]
    assert len(calls) == 1
    assert "output_operand_alias" in calls[0]


@pytest.mark.parametrize("impl", ["pallas_tpu", "pallas_gpu"])
def test_a_kernel_of_another_machine_says_so_here(impl):
    if jax.default_backend() != "cpu":
        pytest.skip("states what a CPU machine answers")
    run = functools.partial(gated_delta.verify_snapshots, impl=impl)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), arguments(1, 1, 1, **SMALL, dtype=jnp.float32)[0])
    with pytest.raises((ValueError, NotImplementedError), match=r"(?i)cpu"):
        run(*zeros)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "n_tokens"), [(QWEN3_6_27B, 4), (QWEN3_6_27B, 1), (SMALL, 3)])
def test_the_tpu_compiler_accepts_the_kernel_and_copies_no_state(shape, n_tokens):
    """Lowering alone accepts programs that Mosaic then rejects; this compiles for a v5e (needs the package libtpu)."""
    pytest.importorskip("libtpu")
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    device = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[0]
    given = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=SingleDeviceSharding(device)),
        arguments(2, n_tokens, 4, **shape, dtype=jnp.bfloat16),
    )
    memory = program("pallas_tpu", "tiled").lower(*given).compile().memory_analysis()
    slots_bytes = 2 * 4 * shape["hv"] * shape["width"] ** 2 * 4
    assert memory.temp_size_in_bytes < slots_bytes + 2**20  # at most the one copy that an argument not donated needs
