"""Norms over the last axis, computed in float32.

A norm reads little and is read at once by the next product: on GPUs and TPUs XLA fuses it with its neighbours, and a
kernel of its own would only add a launch.
"""

import math

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from pallas_kernels import dispatch
from pallas_kernels.arguments import expect_array
from pallas_kernels.rms_norm.implementations import RMS_NORM


def rms_norm(
    x: Float[Array, "... D"],
    weight: Float[Array, " D"] | None = None,
    *,
    epsilon: float,
    gate: Float[Array, "... D"] | None = None,
    impl: str | None = None,
) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + epsilon), times the weight, times silu(gate).

    Args:
        x: the rows.
        weight, gate: left out where they are None; a gate needs a weight.
        epsilon: what keeps a row of zeros finite.
        impl: name of an implementation; default: the first that fits, see `explain`.

    Returns:
        float32, whatever the dtype of x.

    Raises:
        ValueError: shapes or dtypes that do not fit, or a gate without a weight.

    Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", arXiv 1910.07467; gated: Dao and Gu,
    "Transformers are SSMs", arXiv 2405.21060.
    """
    expect_array("rms_norm", "x", x, "... D", empty=True)
    if weight is not None:
        expect_array("rms_norm", "weight", weight, "D", empty=True)
    if gate is not None:
        expect_array("rms_norm", "gate", gate, "... D", empty=True)
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(f"rms_norm: weight has shape {weight.shape}; [D] with x {x.shape} is {x.shape[-1:]}")
    if gate is not None and (weight is None or gate.shape != x.shape):
        raise ValueError(
            "rms_norm: a gate has the shape of x and needs a weight; "
            f"got gate {gate.shape}, x {x.shape}, {'no weight' if weight is None else 'a weight'}"
        )
    return _run(impl, x, weight, gate, scale=1 / max(1, x.shape[-1]), epsilon=epsilon)


def l2_norm(x: Float[Array, "... D"], *, epsilon: float, impl: str | None = None) -> Float[Array, "... D"]:
    """x / sqrt(sum(x^2) + epsilon), in float32; see `rms_norm`."""
    expect_array("l2_norm", "x", x, "... D", empty=True)
    return _run(impl, x, None, None, scale=1.0, epsilon=epsilon)


def _run(
    impl: str | None, x: Array, weight: Array | None, gate: Array | None, *, scale: float, epsilon: float
) -> Array:
    run = dispatch.choose(RMS_NORM, impl, {"rows": math.prod(x.shape[:-1]), "D": x.shape[-1]}).run
    arrays = [None if array is None else array.astype(jnp.float32) for array in (x, weight, gate)]
    return run(*arrays, scale=scale, epsilon=epsilon)


def explain(*, D: int, platform: str | None = None) -> str:
    """Which implementation `rms_norm` chooses for rows of this width, and why not the others."""
    return dispatch.explain(RMS_NORM, {"D": D}, platform)
