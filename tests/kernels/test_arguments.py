"""Every argument of every kind of damage is named in the error, whatever implementation would have run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiled import stored
from gated_delta_cases import draw

from pallas_kernels import cache_attention, explain, gated_delta
from pallas_kernels.hadamard import walsh_hadamard

DAMAGE: dict[str, Callable[[Any], Any]] = {
    "a list": lambda x: x.tolist(),
    "nothing": lambda x: None,
    "an axis too few": lambda x: x[0],
    "an axis too many": lambda x: x[None],
    "an empty axis": lambda x: x[:, :0] if x.ndim > 1 else x[:0],
    "complex": lambda x: x.astype(np.complex64),
    "truth values": lambda x: x.astype(bool),
}


def deltas() -> dict[str, Any]:
    inputs = draw().first(2)
    slots = np.stack([inputs.state] * 3, axis=1)
    return {**inputs._asdict(), "slots": slots, "slot": np.zeros(2, np.int32), "n_valid": np.full(2, 2)}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("operation", ["prefill", "verify", "verify_snapshots"])
def test_gated_delta_names_what_is_damaged(operation: str, damage: str) -> None:
    given = deltas()
    for name in ("slots", "slot") if operation != "verify_snapshots" else ("state",):
        del given[name]
    for name in given:
        if (name, damage) == ("n_valid", "nothing"):
            continue
        with pytest.raises(ValueError, match=rf"gated_delta\.{operation}: ({name}|[a-z]) (is|has) "):
            getattr(gated_delta, operation)(**{**given, name: DAMAGE[damage](given[name])})


@pytest.mark.parametrize("damage", DAMAGE)
def test_commit_names_what_is_damaged(damage: str) -> None:
    given = deltas()
    records = {"k": given["k"], "u": given["v"], "g": given["g"]}
    call = {"state": given["state"], "records": gated_delta.Records(**records), "n": np.ones(2, np.int32)}
    for name in records:
        broken = gated_delta.Records(**{**records, name: DAMAGE[damage](records[name])})
        with pytest.raises(ValueError, match=r"gated_delta\.commit: (records\.)?[a-z]+ (is|has) "):
            gated_delta.commit(**{**call, "records": broken})
    for name in ("state", "n"):
        with pytest.raises(ValueError, match=rf"gated_delta\.commit: {name} (is|has) "):
            gated_delta.commit(**{**call, name: DAMAGE[damage](call[name])})


@pytest.mark.parametrize("impl", ["xla_recurrent", "pallas_tpu_interpret", "reference"])
def test_slots_are_named_by_integers_of_any_type_and_may_be_constants(impl: str) -> None:
    given = deltas()
    del given["state"], given["slot"]
    call = partial(gated_delta.verify_snapshots, impl=impl)
    run = jax.jit(call)
    expected = run(**given, slot=np.array([2, 1], np.int32))
    for dtype in (np.int8, np.uint32):
        got = run(**given, slot=np.array([2, 1], dtype))
        jax.tree.map(partial(np.testing.assert_array_equal, err_msg=dtype.__name__), got, expected)
    # As an argument of a program it would be an int32.
    constants = {"slots": given.pop("slots"), "slot": np.array([2, 1], np.int64)}
    got = jax.jit(lambda given: call(**given, **constants))(given)
    jax.tree.map(np.testing.assert_array_equal, got, expected)


def attention() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    k, v = (stored(rng.standard_normal((2, 150, 2, 16)).astype(np.float32), "f32") for _ in range(2))
    q = rng.standard_normal((2, 3, 4, 16)).astype(np.float32)
    positions = np.array([[125, 126, 127], [3, 4, -1]])
    return {"q": q, "k": k, "v": v, "positions": positions, "scale": 0.25, "sinks": np.zeros(4, np.float32)}


@pytest.mark.parametrize(
    ("name", "bad", "message"),
    [
        *(("q", damage, r"q (is|has)") for damage in DAMAGE),
        *(("positions", damage, r"positions (is|has|have)") for damage in DAMAGE),
        *(("sinks", damage, r"sinks (is|has|have)") for damage in DAMAGE if damage != "nothing"),
        ("k", lambda k: k.values(), r"k is of type .*; accepted: a KVStore \[B, S, G, N\]"),
        ("v", lambda v: v.map(lambda x: x[:, :0]), r"no axis is empty; got q .* v \(2, 0, 2, 16\)"),
        ("scale", lambda _: None, "scale is None; accepted: a finite number"),
        ("scale", lambda _: float("nan"), "scale is nan; accepted: a finite number"),
        ("scale", jnp.float32, r"scale is Array\(0.25.*; accepted: a finite number, and no array"),
        ("window", lambda _: 0, "window is 0; accepted: an integer, at least 1"),
        ("window", lambda _: 2.5, "window is 2.5; accepted: an integer, at least 1"),
        ("soft_cap", lambda _: "50", "soft_cap is '50'; accepted: a number above 0, or None"),
    ],
)
def test_attention_names_what_is_damaged(name: str, bad: Any, message: str) -> None:
    given = attention()
    damage = DAMAGE[bad] if isinstance(bad, str) else bad
    with pytest.raises(ValueError, match=rf"cache_attention\.attend: .*{message}"):
        cache_attention.attend(**{**given, name: damage(given.get(name))})


@pytest.mark.parametrize("impl", [None, "xla_floats", "xla_tiles", "pallas_tpu_interpret"])
def test_positions_are_integers_of_any_type(impl: str | None) -> None:
    """The last positions that a type has among them: the next one is no number of the type."""
    given = {**attention(), "sinks": None}
    del given["positions"]
    caches = {name: given.pop(name) for name in ("q", "k", "v")}
    run = jax.jit(partial(cache_attention.attend, **given, impl=impl))
    for dtype in (np.int8, np.uint8, np.uint32):
        last = min(np.iinfo(dtype).max, 149)
        positions = np.array([[last - 2, last - 1, last], [3, 4, 5]], np.int32)
        expected, got = (run(**caches, positions=positions.astype(each)) for each in (np.int32, dtype))
        np.testing.assert_array_equal(got, expected, err_msg=dtype.__name__)


@pytest.mark.parametrize("dtype", [np.int32, np.float64, bool, np.complex64])
def test_a_transform_is_of_floats(dtype: Any) -> None:
    x = np.ones((2, 8), dtype)
    with pytest.raises(ValueError, match=rf"walsh_hadamard: x is {x.dtype}; accepted: float32, bfloat16, float16"):
        walsh_hadamard(x)
    with pytest.raises(ValueError, match=rf"walsh_hadamard: before is {x.dtype}; accepted: float32"):
        walsh_hadamard(np.ones((2, 8), np.float32), before=x[0])


@pytest.mark.parametrize("impl", [None, "pallas_tpu_interpret", "pallas_gpu_interpret", "reference"])
@pytest.mark.parametrize("width", [8, 256])
def test_the_transform_of_no_vectors_is_none(width: int, impl: str | None) -> None:
    assert walsh_hadamard(np.zeros((3, 0, width), np.float32), impl=impl).shape == (3, 0, width)


SIZES = {"T": 4, "Hk": 2, "Hv": 4, "Dk": 16, "Dv": 16}
ATTENTION = {"T": 4, "H": 8, "G": 2, "N": 64, "S": 128, "k_type": "f32", "v_type": "f32"}


@pytest.mark.parametrize(
    ("operation", "given", "message"),
    [
        ("gated_delta.verify", {**SIZES, "Hv": 3}, "the value heads must be a multiple of the key heads"),
        ("gated_delta.verify", {**SIZES, "T": 0}, "T is 0; accepted: an integer, at least 1"),
        ("gated_delta.verify", {**SIZES, "X": 1}, "not known: X"),
        ("cache_attention", {**ATTENTION, "G": 3}, "8 query heads cannot share 3 KV heads evenly"),
        ("cache_attention", {**ATTENTION, "S": 0}, "S is 0; accepted: an integer, at least 1"),
        ("cache_attention", {**ATTENTION, "soft_cap": -1}, "soft_cap is -1; accepted: a number above 0"),
        ("hadamard", {"N": 96}, "the last axis has 96 values; it must be a power of two"),
        ("hadamard", {"N": 64, "platform": "cuda"}, "platform is 'cuda'; accepted: METAL, cpu, gpu, metal, mps, tpu"),
    ],
)
def test_no_choice_is_explained_for_a_call_that_would_be_an_error(
    operation: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        explain(operation, **given)
