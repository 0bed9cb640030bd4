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

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from pallas_kernels import dispatch
from pallas_kernels.arguments import expect_array, expect_number
from pallas_kernels.gated_delta.arguments import (
    check_records,
    check_sizes,
    check_tokens,
    expect_counts,
    expect_state,
    with_head_map,
)
from pallas_kernels.gated_delta.heads import HeadMap
from pallas_kernels.gated_delta.implementations import OPERATIONS
from pallas_kernels.gated_delta.tokens import Records, Tokens


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
    return _run("prefill", Tokens(q, k, v, g, beta), state, n_valid, head_map, scale, impl)


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
    out, u = _run("verify", Tokens(q, k, v, g, beta), state, n_valid, head_map, scale, impl)
    return out, Records(k=k, u=u, g=g.astype(jnp.float32))


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
    dims = check_records("gated_delta.commit", records, head_map)
    axes = "B Hv Dk Dv"
    expect_state("gated_delta.commit", "state", state, tuple(dims[axis] for axis in axes.split()), axes)
    expect_counts("gated_delta.commit", "n", n, dims["B"])
    run = dispatch.choose(OPERATIONS["commit"], impl, dims).run
    return run(records, state, n.astype(jnp.int32), head_map=head_map)


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
    return _run("verify_snapshots", Tokens(q, k, v, g, beta), slots, n_valid, head_map, scale, impl, slot)


def explain(operation: str, *, platform: str | None = None, head_map: HeadMap = "tiled", **dims: int) -> str:
    """Which implementation "prefill", "verify", "commit" or "verify_snapshots" takes for T, Hk, Hv, Dk, Dv, and why."""
    if operation not in OPERATIONS:
        raise ValueError(f"gated_delta.explain: operation is {operation!r}; accepted: {', '.join(OPERATIONS)}")
    check_sizes("gated_delta.explain", dims, head_map)
    return dispatch.explain(OPERATIONS[operation], with_head_map(dims, head_map), platform)


def _run(
    operation: str,
    tokens: Tokens,
    states: Array,
    n_valid: Array | None,
    head_map: HeadMap,
    scale: float | None,
    impl: str | None,
    slot: Array | None = None,
) -> tuple[Array, Array]:
    """Check the arguments, choose an implementation and run it; `verify_snapshots` has slots for states."""
    name = f"gated_delta.{operation}"
    dims = check_tokens(name, tokens, n_valid, head_map)
    states_name, axes = "state", "B Hv Dk Dv"
    if operation == "verify_snapshots":
        states_name, axes = "slots", "B M Hv Dk Dv"
        expect_array(name, states_name, states, axes, ("float32",))
        expect_counts(name, "slot", slot, dims["B"])
        dims["M"] = states.shape[1]
    expect_state(name, states_name, states, tuple(dims[axis] for axis in axes.split()), axes)
    if scale is not None:
        expect_number(name, "scale", scale)
    run = dispatch.choose(OPERATIONS[operation], impl, dims).run
    counts = jnp.full((dims["B"],), dims["T"]) if n_valid is None else n_valid
    settings = {"head_map": head_map, "scale": dims["Dk"] ** -0.5 if scale is None else scale}
    integers = (x.astype(jnp.int32) for x in (slot, counts) if x is not None)
    out, second = run(tokens, states, *integers, **settings)
    return out.astype(tokens.v.dtype), second
