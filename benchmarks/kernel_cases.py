"""Calls of every kernel as models make them, such that each call of a chain needs the one before."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from random_model import random_blocks

from pallas_kernels import (
    cache_attention,
    causal_conv1d,
    gated_delta,
    hadamard,
    matmul,
    rms_norm,
    softmax_totals,
)
from pallas_kernels.kv_formats import KVStore

Step = Callable[[str, Array, Any, Any], tuple[Array, Any]]


@dataclass(frozen=True)
class Case:
    """An operation at some sizes.

    Attributes:
        operation: its full name.
        sizes: what to print of them.
        num_bytes: that a call reads and writes at least.
        make: from a seed: `own`, which a call changes, such as a state, and `fixed`, which it only reads.
        chained: what the first call is given by the call before it.
        step: from the name of an implementation, `chained`, `own` and `fixed` to the next `chained` and `own`.
    """

    operation: str
    sizes: str
    num_bytes: int
    make: Callable[[int], tuple[Any, Any]]
    chained: Array
    step: Step


def cases(*, small: bool) -> Iterator[Case]:
    """All operations, with a layer's sizes of Qwen3.6-27B or with smaller ones."""
    batches = (2,) if small else (1, 8)
    for batch in batches:
        yield from _gated_delta_rounds(batch, 4)
    yield _gated_delta_prefill(128 if small else 2048)
    for batch, tokens in ((4, 4), (1, 256)) if small else ((8, 4), (1, 2048)):
        yield _convolution(batch, tokens)
    yield _hadamard(8192 if small else 65536)
    yield _norm(512 if small else 2048, 1024 if small else 5120)
    yield _totals(4 if small else 16, 8192 if small else 248320)
    widths = (1024, 4096) if small else (5120, 17408)
    for name in ("Q8_0", "Q4_K"):
        for rows in (4, 64 if small else 512):
            yield _products(name, rows, *widths)
    for rows in (4, 64 if small else 512):
        yield _float_products(rows, *widths, dtype=jnp.float32 if small else jnp.bfloat16)
        yield _experts(rows, 16 if small else 64, 2, *((256, 512) if small else (2048, 1024)))
    for kind in ("f32" if small else "bf16", "q8_0"):
        yield _attention(kind, 4, 2048 if small else 32768)
    rows, slots = (64, 1024) if small else (512, 32768)
    yield _attention("f32" if small else "bf16", rows, slots)


def _normal(seed: int, *shape: int, dtype: Any = jnp.float32) -> Array:
    # By numpy: jax would compile a program for each shape.
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32), dtype)


def _nbytes(*trees: Any) -> int:
    """Of arrays, or of what `jax.eval_shape` says of them."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for tree in trees for leaf in jax.tree.leaves(tree))


def _after(value: Array, result: Array) -> Array:
    """`value`, to be had when `result` is there: calls that do not need each other would run side by side on a CPU."""
    if jax.default_backend() != "cpu":
        return value
    return jnp.where(jnp.isinf(result.ravel()[0]), 0, value)


HK, HV, D = 16, 48, 128


def _inputs(seed: int, batch: int, tokens: int) -> tuple[Array, ...]:
    """q, k, g and beta."""
    q, k = (_normal(seed + i, batch, tokens, HK, D) / math.sqrt(D) for i in range(2))
    g = -jax.nn.softplus(_normal(seed + 2, batch, tokens, HV) - 3)
    return q, k, g, jax.nn.sigmoid(_normal(seed + 3, batch, tokens, HV))


def _gated_delta_rounds(batch: int, tokens: int) -> Iterator[Case]:
    sizes = f"B={batch} T={tokens}, {HV}/{HK} heads of {D}x{D}"
    v = _normal(0, batch, tokens, HV, D)
    state = jax.ShapeDtypeStruct((batch, HV, D, D), jnp.float32)
    inputs = jax.eval_shape(lambda: _inputs(0, batch, tokens))

    def verify(impl: str, v: Array, own: Array, fixed: Any) -> tuple[Array, Array]:
        (q, k, g, beta), state = fixed
        out, records = gated_delta.verify(q, k, v, g, beta, state, impl=impl)
        return out, records.u

    yield Case(
        "gated_delta.verify",
        sizes,
        _nbytes(inputs, v, state, v, v),
        lambda seed: (v, (_inputs(seed, batch, tokens), _normal(seed, *state.shape))),
        v,
        verify,
    )

    def commit(impl: str, n: Array, own: Array, records: gated_delta.Records) -> tuple[Array, Array]:
        kept = gated_delta.commit(own, records, n, impl=impl)
        return _after(n, kept), kept

    def records(seed: int) -> gated_delta.Records:
        _, k, g, _ = _inputs(seed, batch, tokens)
        return gated_delta.Records(k, _normal(seed, *v.shape), g)

    yield Case(
        "gated_delta.commit",
        sizes,
        _nbytes(jax.eval_shape(lambda: records(0)), state, state),
        lambda seed: (_normal(seed, *state.shape), records(seed)),
        jnp.full((batch,), tokens, jnp.int32),
        commit,
    )

    def snapshots(impl: str, v: Array, own: Array, fixed: Any) -> tuple[Array, Array]:
        q, k, g, beta = fixed
        return gated_delta.verify_snapshots(q, k, v, g, beta, own, jnp.zeros((batch,), jnp.int32), impl=impl)

    yield Case(
        "gated_delta.verify_snapshots",
        sizes,
        _nbytes(inputs, v, v, state) + tokens * _nbytes(state),
        lambda seed: (_normal(seed, batch, tokens, HV, D, D), _inputs(seed, batch, tokens)),
        v,
        snapshots,
    )


def _gated_delta_prefill(tokens: int) -> Case:
    def step(impl: str, v: Array, own: Array, fixed: Any) -> tuple[Array, Array]:
        q, k, g, beta = fixed
        return gated_delta.prefill(q, k, v, g, beta, own, impl=impl)

    v, state = _normal(0, 1, tokens, HV, D), jax.ShapeDtypeStruct((1, HV, D, D), jnp.float32)
    return Case(
        "gated_delta.prefill",
        f"B=1 T={tokens}, {HV}/{HK} heads of {D}x{D}",
        _nbytes(jax.eval_shape(lambda: _inputs(0, 1, tokens)), v, v, state, state),
        lambda seed: (_normal(seed, *state.shape), _inputs(seed, 1, tokens)),
        v,
        step,
    )


def _convolution(batch: int, tokens: int, channels: int = (2 * HK + HV) * D, width: int = 4) -> Case:
    def step(impl: str, x: Array, window: Array, weight: Array) -> tuple[Array, Array]:
        out, inputs = causal_conv1d.causal_conv1d(x, weight, window, impl=impl)
        return out, causal_conv1d.window_at(inputs, jnp.full((batch,), tokens), width - 1)

    x = _normal(0, batch, tokens, channels, dtype=jnp.bfloat16)
    window, weight = jnp.zeros((batch, width - 1, channels), x.dtype), _normal(1, channels, width)
    return Case(
        "causal_conv1d",
        f"B={batch} T={tokens} C={channels} W={width} bf16",
        _nbytes(x, x, window, window, weight),
        lambda seed: (window, _normal(seed, channels, width)),
        x,
        step,
    )


def _hadamard(rows: int, width: int = 256) -> Case:
    x = _normal(0, rows, width)
    return Case(
        "hadamard",
        f"rows={rows} N={width} f32",
        _nbytes(x, x),
        lambda seed: ((), ()),
        x,
        lambda impl, x, own, fixed: (hadamard.walsh_hadamard(x, impl=impl), own),
    )


def _norm(rows: int, width: int) -> Case:
    x, weight = _normal(0, rows, width), _normal(1, width)
    return Case(
        "rms_norm",
        f"rows={rows} D={width} f32",
        _nbytes(x, x, weight),
        lambda seed: ((), weight),
        x,
        lambda impl, x, own, weight: (rms_norm.rms_norm(x, weight, epsilon=1e-6, impl=impl), own),
    )


def _totals(rows: int, width: int) -> Case:
    x = _normal(0, rows, width)

    def step(impl: str, x: Array, own: Any, fixed: Any) -> tuple[Array, Any]:
        totals = softmax_totals.softmax_totals(x, impl=impl)
        return x - 1e-6 * (totals.log_total + totals.entropy)[:, None], own

    return Case("softmax_totals", f"rows={rows} V={width} f32", _nbytes(x), lambda seed: ((), ()), x, step)


def _products(name: str, rows: int, width: int, hidden: int) -> Case:
    """There and back: two matrices, so that a result is the next input."""

    def step(impl: str, x: Array, own: Any, fixed: Any) -> tuple[Array, Any]:
        up, down = fixed
        return matmul.quant_matmul(matmul.quant_matmul(x, up, impl=impl), down, impl=impl) * gain, own

    def matrices(seed: int) -> Any:
        rng = np.random.default_rng(seed)
        shapes = ((hidden, width), (width, hidden))
        blocks = (matmul.from_blocks(jnp.asarray(random_blocks(rng, name, shape)), name) for shape in shapes)
        return tuple(matmul.prepare(matrix) for matrix in blocks)

    x = _normal(0, rows, width)
    gain = 1 / (0.02**2 * math.sqrt(width * hidden))  # values stay as large as they are
    between = jax.ShapeDtypeStruct((rows, hidden), x.dtype)
    return Case(
        "matmul.packed",
        f"{name} M={rows}, {width}x{hidden} there and back",
        sum(matrix.nbytes for matrix in matrices(0)) + _nbytes(x, between, between, x),
        lambda seed: ((), matrices(seed)),
        x,
        step,
    )


def _float_products(rows: int, width: int, hidden: int, dtype: Any = jnp.float32) -> Case:
    def step(impl: str, x: Array, own: Any, fixed: Any) -> tuple[Array, Any]:
        up, down = fixed
        return matmul.float_matmul(matmul.float_matmul(x, up, impl=impl), down, impl=impl) * gain, own

    def matrices(seed: int) -> Any:
        return _normal(seed, hidden, width, dtype=dtype), _normal(seed + 1, width, hidden, dtype=dtype)

    x = _normal(0, rows, width)
    gain = 1 / math.sqrt(width * hidden)  # values stay as large as they are
    between = jax.ShapeDtypeStruct((rows, hidden), x.dtype)
    return Case(
        "matmul.float",
        f"{jnp.dtype(dtype).name} M={rows}, {width}x{hidden} there and back",
        _nbytes(jax.eval_shape(lambda: matrices(0)), x, between, between, x),
        lambda seed: ((), matrices(seed)),
        x,
        step,
    )


def _experts(rows: int, number: int, top_k: int, width: int, hidden: int) -> Case:
    shapes = ((number, hidden, width), (number, hidden, width), (number, width, hidden))
    expert = jnp.arange(rows * top_k, dtype=jnp.int32).reshape(rows, top_k) % number
    weight = jnp.full((rows, top_k), 1 / top_k)

    def step(impl: str, x: Array, own: Any, fixed: Any) -> tuple[Array, Any]:
        return matmul.experts(x, expert, weight, *fixed, impl=impl), own

    x = _normal(0, rows, width)
    used = min(number, rows * top_k)
    return Case(
        "matmul.experts",
        f"M={rows}, {top_k} of {number} experts of {width}x{hidden}",
        3 * used * hidden * width * 4 + 2 * _nbytes(x),
        lambda seed: ((), tuple(_normal(seed + i, *shape) / math.sqrt(shape[-1]) for i, shape in enumerate(shapes))),
        x,
        step,
    )


def _attention(kind: str, rows: int, slots: int) -> Case:
    heads, groups, width = 24, 4, 256
    positions = jnp.arange(slots - rows, slots, dtype=jnp.int32)[None]

    def step(impl: str, q: Array, own: Any, fixed: Any) -> tuple[Array, Any]:
        k, v = fixed
        return cache_attention.attend(q, k, v, positions, scale=width**-0.5, impl=impl), own

    def caches(seed: int) -> Any:
        return tuple(KVStore.of(_normal(seed + i, 1, slots, groups, width), kind) for i in range(2))

    q = _normal(0, 1, rows, heads, width)
    return Case(
        "cache_attention",
        f"{kind} B=1 T={rows} S={slots}, {heads}/{groups} heads of {width}",
        _nbytes(jax.eval_shape(lambda: caches(0)), q, q),
        lambda seed: ((), caches(seed)),
        q,
        step,
    )
