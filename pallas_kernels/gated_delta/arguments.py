"""Checks of arguments. Errors name the argument, what was got, and what is accepted."""

import jax.numpy as jnp
from jax import Array

from pallas_kernels.gated_delta.heads import HEAD_MAPS


def check_inputs(
    operation: str, q: Array, k: Array, v: Array, g: Array, beta: Array, n_valid: Array | None, head_map: str
) -> dict[str, int]:
    """The sizes by axis letter; ValueError where the arguments do not belong together."""
    if q.ndim != 4 or v.ndim != 4:
        raise ValueError(
            f"{operation}: q [B, T, Hk, Dk] and v [B, T, Hv, Dv] have 4 axes; got q {q.shape}, v {v.shape}"
        )
    (b, t, hk, dk), (hv, dv) = q.shape, v.shape[2:]
    if t < 1:
        raise ValueError(f"{operation}: q has no tokens, shape {q.shape}; T is at least 1 (empty rows: n_valid = 0)")
    expect(operation, "k", k, (b, t, hk, dk), "B T Hk Dk")
    expect(operation, "v", v, (b, t, hv, dv), "B T Hv Dv")
    expect(operation, "g", g, (b, t, hv), "B T Hv")
    expect(operation, "beta", beta, (b, t, hv), "B T Hv")
    for name, x in {"q": q, "k": k, "v": v, "g": g, "beta": beta}.items():
        if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
            raise ValueError(f"{operation}: {name} is {x.dtype}; accepted: float32, bfloat16, float16")
    check_head_map(operation, hk, hv, head_map)
    if n_valid is not None:
        expect_counts(operation, "n_valid", n_valid, b)
    return {"B": b, "T": t, "Hk": hk, "Hv": hv, "Dk": dk, "Dv": dv}


def check_head_map(operation: str, hk: int, hv: int, head_map: str) -> None:
    """ValueError unless the head map is known and Hv is a multiple of Hk."""
    if head_map not in HEAD_MAPS:
        raise ValueError(f"{operation}: head_map is {head_map!r}; accepted: {', '.join(map(repr, HEAD_MAPS))}")
    if hv % hk:
        raise ValueError(
            f"{operation}: v has {hv} heads and k {hk}; the value heads must be a multiple of the key heads"
        )


def expect(operation: str, name: str, x: Array, shape: tuple[int, ...], axes: str) -> None:
    """ValueError unless the argument has the shape; `axes` names its axes."""
    if x.shape != shape:
        raise ValueError(f"{operation}: {name} has shape {x.shape}; [{axes}] is {shape} with the other arguments")


def expect_state(operation: str, name: str, x: Array, shape: tuple[int, ...], axes: str) -> None:
    """ValueError unless the argument has the shape and is float32."""
    expect(operation, name, x, shape, axes)
    if x.dtype != jnp.float32:
        raise ValueError(f"{operation}: {name} is {x.dtype}; recurrent state is float32")


def expect_counts(operation: str, name: str, x: Array, n_rows: int) -> None:
    """ValueError unless the argument is an integer per row."""
    expect(operation, name, x, (n_rows,), "B")
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise ValueError(f"{operation}: {name} is {x.dtype}; an integer dtype is accepted")
