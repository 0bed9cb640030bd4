"""Kernels with an instruction that only Hopper has, on another GPU: sizes that no other test has traced already."""

import re
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from cache_attention_cases import Case
from test_quant_pallas_gpu import activations, matrix

from pallas_kernels import cache_attention, gated_delta, matmul, using
from pallas_kernels.cache_attention.implementations import CACHE_ATTENTION
from pallas_kernels.causal_conv1d.implementations import CAUSAL_CONV1D
from pallas_kernels.gated_delta.implementations import OPERATIONS as DELTAS
from pallas_kernels.hadamard.implementations import HADAMARD
from pallas_kernels.matmul.implementations import QUANT_MATMUL
from pallas_kernels.matmul.planes import pack


def prompt_attends() -> jax.Array:
    case = Case("bf16", "bf16", (tuple(range(21)),), 43)
    return cache_attention.attend(case.q, *case.caches, case.rows, scale=0.1, impl="pallas_gpu_prefill")


def few_rows_attend() -> jax.Array:
    case = Case("bf16", "bf16", (tuple(range(3)),), 45)
    return cache_attention.attend(case.q, *case.caches, case.rows, scale=0.1, impl="pallas_gpu_splits")


def many_rows() -> jax.Array:
    blocks = matrix("Q4_0", 40)
    return matmul.quant_matmul(activations(18, blocks.width), pack(blocks), impl="pallas_gpu_prefill")


def prompt_in_chunks() -> jax.Array:
    keys, scalars = jnp.zeros((1, 71, 2, 64)), jnp.zeros((1, 71, 2))
    return gated_delta.prefill(
        keys, keys, keys, scalars, scalars, jnp.zeros((1, 2, 64, 64)), impl="pallas_gpu_prefill"
    )[0]


def gpu(monkeypatch: pytest.MonkeyPatch, kind: str, capability: str) -> None:
    device = SimpleNamespace(device_kind=kind, compute_capability=capability, platform="gpu")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda *_: [device])


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu(monkeypatch, "NVIDIA B200", "10.0")


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("call", [prompt_attends, few_rows_attend, many_rows, prompt_in_chunks])
def test_kernels_for_hopper_say_so_on_another_gpu(call: Callable[[], jax.Array]) -> None:
    with pytest.raises(ValueError, match=r"does not fit: multiplies with wgmma, .*; NVIDIA B200 is of 10\.0"):
        call()


@pytest.mark.usefixtures("blackwell")
def test_products_of_few_rows_are_for_later_gpus_too() -> None:
    weight = pack(matrix("Q4_0", 40))
    with using("matmul.packed=pallas_gpu+pallas_gpu_prefill"):
        few, many = (matmul.explain(activations(rows, weight.width), weight) for rows in (16, 17))
    assert re.search(r"pallas_gpu +chosen", few)
    assert re.search(r"pallas_gpu +passed over: M=17 is over 16", many)
    assert re.search(r"pallas_gpu_prefill +passed over: multiplies with wgmma", many)


@pytest.mark.parametrize(("capability", "fits"), [("8.6", False), ("gfx942", False), ("9.0", True), ("12.0", True)])
def test_mosaic_gpu_is_for_hopper_and_later(capability: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere each kernel would be compiled in vain, and its failure reported."""
    gpu(monkeypatch, "a GPU", capability)
    reason = f"made for NVIDIA GPUs of compute capability 9.0 and later; this one says {capability}"
    sizes = {
        "T": 4,
        "S": 64,
        "N": 128,
        "H": 4,
        "G": 2,
        "M": 4,
        "C": 128,
        "W": 4,
        "Dk": 128,
        "Dv": 128,
        "layout": "planes",
    }
    kernels = [
        impl
        for each in (*DELTAS.values(), QUANT_MATMUL, CACHE_ATTENTION, HADAMARD, CAUSAL_CONV1D)
        for impl in each.implementations
        if impl.name == "pallas_gpu"
    ]
    assert len(kernels) == len(DELTAS) + 4
    for each in kernels:
        assert each.unfit({**sizes, "k_type": "q8_0", "v_type": "q8_0"}) == (None if fits else reason)
