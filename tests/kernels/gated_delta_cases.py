"""Inputs of the gated delta tests and the law that they are held against."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from lowering import here

from pallas_kernels.gated_delta import reference
from pallas_kernels.gated_delta.implementations import OPERATIONS
from pallas_kernels.gated_delta.tokens import Tokens

B, HK, HV, DK, DV = 2, 2, 4, 16, 64  # the Hopper kernel works on 64 columns
LONGEST = 130
ROUNDING = {"float32": 1e-5, "bfloat16": 2e-3}
"""Relative RMS that outputs may differ by from the law on the same inputs; bfloat16 outputs are rounded. States and
records are float32 and held to the first."""
PROFILES = ("model", "forgetting", "repeating")
"""Decays and keys as models have them; decays that underflow; one key over and over, barely decaying."""


class Inputs(NamedTuple):
    """Arguments of prefill and verify."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    g: np.ndarray
    beta: np.ndarray
    state: np.ndarray

    @property
    def tokens(self) -> Tokens:
        """All but the state."""
        return Tokens(*self[:5])

    def first(self, n_tokens: int) -> "Inputs":
        return Inputs(*(x[:, :n_tokens] for x in self[:5]), self.state)


class Law(NamedTuple):
    """What the reference makes of Inputs in float64: [B, T, Hv, Dv] twice, and T states."""

    out: np.ndarray
    u: np.ndarray
    states: list[np.ndarray]


@functools.cache
def draw(profile: str = "model", dtype: str = "float32", n_rows: int = B, n_tokens: int = LONGEST) -> Inputs:
    rng = np.random.default_rng(n_rows)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in normal(2, n_rows, n_tokens, HK, DK))
    v, beta = normal(n_rows, n_tokens, HV, DV), 1 / (1 + np.exp(-normal(n_rows, n_tokens, HV)))
    g = -np.exp(normal(n_rows, n_tokens, HV) - 1)
    if profile == "forgetting":
        g = g * 200
    if profile == "repeating":
        k, g, beta = np.broadcast_to(k[:, :1], k.shape), g * 1e-3, beta * 0.05 + 0.95
    inputs = (x.astype(jnp.dtype(dtype)) for x in (q, k, v))
    scalars = (x.astype(np.float32) for x in (g, beta, normal(n_rows, HV, DK, DV)))
    return Inputs(*inputs, *scalars)


step = jax.jit(functools.partial(reference.recurrence, scale=DK**-0.5), static_argnames="head_map")


@functools.cache
def law(profile: str = "model", dtype: str = "float32", head_map: str = "tiled", n_rows: int = B) -> Law:
    """Of LONGEST tokens, one after the other; the recurrence is causal, so a shorter call has a prefix of it."""
    inputs = Inputs(*(x.astype(np.float64) for x in draw(profile, dtype, n_rows)))
    outs, us, states = [], [], [inputs.state]
    with jax.enable_x64(True):
        for t in range(LONGEST):
            one = Tokens(*(x[:, t : t + 1] for x in inputs.tokens))
            out, u, (state,) = jax.tree.map(np.asarray, step(one, states[-1], np.ones(n_rows, int), head_map=head_map))
            outs.append(out)
            us.append(u)
            states.append(state)
    return Law(np.concatenate(outs, axis=1), np.concatenate(us, axis=1), states[1:])


@functools.cache
def mixed(profiles: tuple[str, ...]) -> tuple[Inputs, Law]:
    """A batch of which each row has a profile of its own, and its law."""
    inputs, laws = [draw(each) for each in profiles], [law(each) for each in profiles]
    parts = (np.stack([x[row] for row, x in enumerate(each)]) for each in zip(*inputs, strict=True))
    out, u = (np.stack([x[row] for row, x in enumerate(each)]) for each in zip(*(x[:2] for x in laws), strict=True))
    states = [np.stack([x[row] for row, x in enumerate(each)]) for each in zip(*(x.states for x in laws), strict=True)]
    return Inputs(*parts), Law(out, u, states)


def rms_error(got: jax.Array, expected: np.ndarray) -> float:
    """Relative RMS of the difference."""
    difference = np.asarray(got, np.float64) - expected
    return float(np.sqrt(np.mean(difference**2) / np.mean(expected**2)))


def runnable(operation: str) -> list[Any]:
    """Parameters of tests: implementations that run on any machine."""
    return here(OPERATIONS[operation].names())
