"""The table of operations: their implementations in order of preference, and where each is chosen without being named.

Whatever speaks of operations by name reads it: `dispatch`, `override`, `tuning`, `explain`, the tests and the
benchmarks. The functions behind the names are given in the `implementations.py` of an operation's folder, and
`dispatch.operation` sees to it that both agree.

Kernels for accelerators have no default platform: they run where they were measured to be faster, see `preference`, or
by name.
"""

from collections.abc import Mapping
from typing import Any

Dims = Mapping[str, Any]
"""What is static in a call: sizes by axis letter, and names, such as {"T": 4, "Dk": 128} or {"format": "Q8_0"}."""

Platforms = frozenset[str]
"""Names of platforms as `jax.default_backend()` gives them."""

ANYWHERE: Platforms = frozenset({"cpu", "gpu", "tpu", "METAL", "metal", "mps"})
"""METAL is jax-metal's name, metal that of metaljax, mps that of jax-mps."""
CPU: Platforms = frozenset({"cpu"})
GPU: Platforms = frozenset({"gpu"})
BY_NAME: Platforms = frozenset()


def _kernels(*names: str) -> dict[str, Platforms]:
    """Kernels for accelerators, each followed by the same kernel in an interpreter, which runs on CPUs."""
    return {each: BY_NAME for name in names for each in (name, f"{name}_interpret")}


_REFERENCE = {"reference": BY_NAME}
_DEVICES = {"cpu_native": "cpu", "pallas_tpu": "tpu", "pallas_gpu": "gpu", "triton": "gpu"}


def made_for(impl: str) -> Platforms:
    """The platforms that an implementation is made for, by its name."""
    return next((frozenset({platform}) for kind, platform in _DEVICES.items() if impl.startswith(kind)), ANYWHERE)


TABLE: Mapping[str, Mapping[str, Platforms]] = {
    "cache_attention": {
        "cpu_native": CPU,
        "xla_floats": ANYWHERE,
        "xla_decoded": GPU,
        "xla_tiles": ANYWHERE,
        **_kernels("pallas_tpu", "pallas_tpu_prefill"),
        **_kernels("pallas_gpu", "pallas_gpu_splits", "pallas_gpu_prefill"),
        **_kernels("triton", "triton_prefill"),
        **_REFERENCE,
    },
    "causal_conv1d": {
        "cpu_native": CPU,
        "xla_shifted": ANYWHERE,
        **_kernels("pallas_tpu", "pallas_gpu", "triton"),
        **_REFERENCE,
    },
    "gated_delta.prefill": {
        "cpu_native": CPU,
        "xla_chunked": ANYWHERE,
        "xla_recurrent": BY_NAME,
        **_kernels("pallas_tpu", "pallas_gpu", "pallas_gpu_prefill", "triton", "triton_prefill"),
        **_REFERENCE,
    },
    "gated_delta.verify": {
        "cpu_native": CPU,
        "xla_wy": ANYWHERE,
        "xla_recurrent": BY_NAME,
        **_kernels("pallas_tpu", "pallas_gpu", "triton"),
        **_REFERENCE,
    },
    "gated_delta.commit": {
        "cpu_native": CPU,
        "xla_recurrent": ANYWHERE,
        **_kernels("pallas_tpu", "pallas_gpu", "triton"),
        **_REFERENCE,
    },
    "gated_delta.verify_snapshots": {
        "cpu_native": CPU,
        "xla_recurrent": ANYWHERE,
        **_kernels("pallas_tpu", "pallas_gpu", "triton"),
        **_REFERENCE,
    },
    "hadamard": {
        "xla_matmul": ANYWHERE,
        **_kernels("pallas_tpu", "pallas_gpu", "triton"),
        **_REFERENCE,
    },
    "matmul.experts": {
        "xla_blocks": ANYWHERE,
        **_REFERENCE,
    },
    "matmul.float": {
        "xla_few_rows": CPU,
        "xla_dot": ANYWHERE,
        **_REFERENCE,
    },
    "matmul.packed": {
        "cpu_native": CPU,
        "xla_decoded": GPU,
        "xla_dequant": ANYWHERE,
        **_kernels("pallas_tpu", "pallas_gpu", "pallas_gpu_prefill", "triton", "triton_prefill"),
        **_REFERENCE,
    },
    "rms_norm": {
        "cpu_native": CPU,
        "xla_reduce": ANYWHERE,
        **_REFERENCE,
    },
    "softmax_totals": {
        "cpu_native": CPU,
        "xla_sums": ANYWHERE,
        **_REFERENCE,
    },
}
"""By operation and implementation the platforms on which it is chosen where it fits."""
