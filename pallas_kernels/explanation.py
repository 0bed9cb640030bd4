"""Why an operation would choose the implementation it chooses."""

from collections.abc import Callable
from functools import partial
from typing import Any

from pallas_kernels import cache_attention, causal_conv1d, gated_delta, hadamard, matmul, rms_norm, softmax_totals
from pallas_kernels.table import TABLE

_EXPLAIN: dict[str, Callable[..., str]] = {
    "cache_attention": cache_attention.explain,
    "causal_conv1d": causal_conv1d.explain,
    **{name: partial(gated_delta.explain, name.split(".")[1]) for name in TABLE if name.startswith("gated_delta.")},
    "hadamard": hadamard.explain,
    "matmul.experts": matmul.explain_experts,
    "matmul.float": matmul.explain_float,
    "matmul.packed": matmul.explain,
    "rms_norm": rms_norm.explain,
    "softmax_totals": softmax_totals.explain,
}


def explain(operation: str, *args: Any, **kwargs: Any) -> str:
    """Which implementation an operation would choose, and why not the others.

    Args:
        operation: its name in the table, such as "hadamard" or "gated_delta.verify".
        args, kwargs: what the `explain` of the operation's own module takes after the name: sizes, or the arguments of
            a call; `platform` asks for another one than that of the default device.

    Raises:
        ValueError: the operation is not known.
    """
    if operation not in _EXPLAIN:
        raise ValueError(f"explain: operation {operation!r} is not known; known: {', '.join(TABLE)}")
    return _EXPLAIN[operation](*args, **kwargs)
