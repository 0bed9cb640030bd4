"""The gated delta rule's public functions.

Per token and value head, with S [Dk, Dv] in float32:

    S *= exp(g); u = beta * (v - S^T k); S += k u^T; out = scale * S^T q

q and k come L2-normalised. 0 <= n_valid[b] <= T; rows t >= n_valid[b] may hold anything, NaN included: they leave no
trace in the state and their outputs are 0. A row with n_valid 0 is an empty sequence; no axis may be empty. `head_map`
says which key head value head j uses: "tiled" j % Hk (GGUF), "grouped" j // (Hv // Hk) (Hugging Face). `scale` is
Dk ** -0.5 unless given. `impl` names an implementation; unset, the platform and the arguments choose, and `explain`
says how. Inputs are float32, bfloat16 or float16, computed in float32; outputs have v's dtype. ValueError where
arguments do not fit.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.arguments import expect_array, expect_number
from pallas_kernels.gated_delta.arguments import check_inputs, check_records, check_sizes, expect_counts, expect_state
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.implementations import OPERATIONS


class Records(NamedTuple):
    """What `commit` needs to know of each verified token: its key, and g and u as they were applied to the state
    (float32).
    """

    k: Float[Array, "B T Hk Dk"]
    u: Float[Array, "B T Hv Dv"]
    g: Float[Array, "B T Hv"]


def prefill(
    q: Float[Array, "B T Hk Dk"],
    k: Float[Array, "B T Hk Dk"],
    v: Float[Array, "B T Hv Dv"],
    g: Float[Array, "B T Hv"],
    beta: Float[Array, "B T Hv"],
    state: Float[Array, "B Hv Dk Dv"],
    *,
    n_valid: Int[Array, " B"] | None = None,
    head_map: HeadMap = "tiled",
    scale: float | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T Hv Dv"], Float[Array, "B Hv Dk Dv"]]:
    """Many tokens at once: outputs, and the state after each row's last valid token. Differentiable."""
    run = _prepare("prefill", (q, k, v, g, beta), state, "B Hv Dk Dv", n_valid, head_map, scale, impl)
    out, state = run(q, k, v, g, beta, state)
    return out.astype(v.dtype), state


def verify(
    q: Float[Array, "B T Hk Dk"],
    k: Float[Array, "B T Hk Dk"],
    v: Float[Array, "B T Hv Dv"],
    g: Float[Array, "B T Hv"],
    beta: Float[Array, "B T Hv"],
    state: Float[Array, "B Hv Dk Dv"],
    *,
    n_valid: Int[Array, " B"] | None = None,
    head_map: HeadMap = "tiled",
    scale: float | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T Hv Dv"], Records]:
    """A few tokens of which not all may stay: outputs, and the records from which `commit` makes the state."""
    run = _prepare("verify", (q, k, v, g, beta), state, "B Hv Dk Dv", n_valid, head_map, scale, impl)
    out, u = run(q, k, v, g, beta, state)
    return out.astype(v.dtype), Records(k=k, u=u, g=g.astype(jnp.float32))


def commit(
    state: Float[Array, "B Hv Dk Dv"],
    records: Records,
    n: Int[Array, " B"],
    *,
    head_map: HeadMap = "tiled",
    impl: str | None = None,
) -> Float[Array, "B Hv Dk Dv"]:
    """The state after the first n[b] recorded tokens, n[b] at most n_valid[b]; `state` is the one given to `verify`.

    A state that is donated to the program is updated in place.
    """
    dims = check_records("gated_delta.commit", *records, head_map)
    axes = "B Hv Dk Dv"
    expect_state("gated_delta.commit", "state", state, tuple(dims[axis] for axis in axes.split()), axes)
    expect_counts("gated_delta.commit", "n", n, dims["B"])
    run = dispatch.choose(OPERATIONS["commit"], impl, dims).run
    return run(state, *records, n_valid=n.astype(jnp.int32), head_map=head_map)


def verify_snapshots(
    q: Float[Array, "B T Hk Dk"],
    k: Float[Array, "B T Hk Dk"],
    v: Float[Array, "B T Hv Dv"],
    g: Float[Array, "B T Hv"],
    beta: Float[Array, "B T Hv"],
    slots: Float[Array, "B M Hv Dk Dv"],
    slot: Int[Array, " B"],
    *,
    n_valid: Int[Array, " B"] | None = None,
    head_map: HeadMap = "tiled",
    scale: float | None = None,
    impl: str | None = None,
) -> tuple[Float[Array, "B T Hv Dv"], Float[Array, "B M Hv Dk Dv"]]:
    """A few tokens with the state kept after each of the last M: outputs, and the slots.

    Reads slots[b, slot[b]], 0 <= slot[b] < M. Writes the newest min(n_valid[b], M) states: slot 0 the newest, slot s
    the state s tokens back; other slots stay as they were. So a row with n_valid 0 keeps all its slots and is read
    through the same slot next time.
    """
    expect_array("gated_delta.verify_snapshots", "slots", slots, "B M Hv Dk Dv", ("float32",))
    run = _prepare("verify_snapshots", (q, k, v, g, beta), slots, "B M Hv Dk Dv", n_valid, head_map, scale, impl)
    expect_counts("gated_delta.verify_snapshots", "slot", slot, slots.shape[0])
    out, slots = run(q, k, v, g, beta, slots, slot.astype(jnp.int32))
    return out.astype(v.dtype), slots


def explain(operation: str, *, platform: str | None = None, **dims: int) -> str:
    """Which implementation "prefill", "verify", "commit" or "verify_snapshots" takes for T, Hk, Hv, Dk, Dv, and why."""
    if operation not in OPERATIONS:
        raise ValueError(f"gated_delta.explain: operation is {operation!r}; accepted: {', '.join(OPERATIONS)}")
    check_sizes("gated_delta.explain", dims)
    return dispatch.explain(OPERATIONS[operation], dims, platform)


def _prepare(
    operation: str,
    inputs: tuple[Array, Array, Array, Array, Array],
    state: Array,
    axes: str,
    n_valid: Array | None,
    head_map: HeadMap,
    scale: float | None,
    impl: str | None,
) -> Callable[..., Any]:
    """The first steps of every operation: check the arguments and choose an implementation. Returns it with its
    options.

    `axes` are those of `state`; with an axis M it is the slots.
    """
    full_name, state_name = f"gated_delta.{operation}", "state"
    dims = check_inputs(full_name, *inputs, n_valid, head_map)
    if "M" in axes:
        dims["M"], state_name = state.shape[1], "slots"
    expect_state(full_name, state_name, state, tuple(dims[axis] for axis in axes.split()), axes)
    if scale is not None:
        expect_number(full_name, "scale", scale)
    run = dispatch.choose(OPERATIONS[operation], impl, dims).run
    options = {"head_map": head_map, "scale": dims["Dk"] ** -0.5 if scale is None else scale}
    counts = jnp.full((dims["B"],), dims["T"]) if n_valid is None else n_valid
    return partial(run, n_valid=counts.astype(jnp.int32), **options)
