"""Calls of every operation at any sizes, to time and to compare implementations."""

from collections.abc import Callable, Mapping

from pallas_kernels.cases import gated_deltas, products, rows
from pallas_kernels.cases.attention import attention
from pallas_kernels.cases.case import Case, Given, Outcome, nbytes, words
from pallas_kernels.matmul.random_blocks import random_blocks
from pallas_kernels.table import Dims

CASES: Mapping[str, Callable[[Dims], Case]] = {
    "cache_attention": attention,
    "causal_conv1d": rows.convolution,
    "gated_delta.commit": gated_deltas.commit,
    "gated_delta.prefill": gated_deltas.prefill,
    "gated_delta.verify": gated_deltas.verify,
    "gated_delta.verify_snapshots": gated_deltas.verify_snapshots,
    "hadamard": rows.transform,
    "matmul.experts": products.experts,
    "matmul.float": products.floats,
    "matmul.packed": products.packed,
    "rms_norm": rows.norm,
    "softmax_totals": rows.totals,
}
"""By operation the maker of a case from the dims that implementations are chosen by."""

__all__ = ["CASES", "Case", "Given", "Outcome", "nbytes", "random_blocks", "words"]
