"""What works on rows one by one: norms, totals of a softmax, Hadamard transforms, convolutions."""

from __future__ import annotations

import jax.numpy as jnp

from pallas_kernels import causal_conv1d, hadamard, rms_norm, softmax_totals
from pallas_kernels.cases.case import Case, Given, Outcome
from pallas_kernels.causal_conv1d.implementations import CAUSAL_CONV1D
from pallas_kernels.hadamard.implementations import HADAMARD
from pallas_kernels.random_numbers import normal
from pallas_kernels.rms_norm.implementations import RMS_NORM
from pallas_kernels.softmax_totals.implementations import SOFTMAX_TOTALS
from pallas_kernels.table import Dims

_HUGE = 1e4


def norm(dims: Dims) -> Case:
    """The dims are rows and D."""

    def make(seed: int) -> Given:
        return Given(normal(seed, dims["rows"], dims["D"]), fixed=normal(seed + 1, dims["D"]))

    def call(impl: str | None, given: Given) -> Outcome:
        return Outcome(rms_norm.rms_norm(given.x, given.fixed, epsilon=1e-6, impl=impl))

    return Case(RMS_NORM, dims, make, call, _with_zeros_and_a_huge_value)


def transform(dims: Dims) -> Case:
    """The dims are rows and N."""

    def make(seed: int) -> Given:
        return Given(normal(seed, dims["rows"], dims["N"]))

    def call(impl: str | None, given: Given) -> Outcome:
        return Outcome(hadamard.walsh_hadamard(given.x, impl=impl))

    return Case(HADAMARD, dims, make, call, _with_zeros_and_a_huge_value)


def totals(dims: Dims) -> Case:
    """The dims are rows and V. Cruel are tokens that are ruled out, all of them in a row, and a NaN."""

    def make(seed: int) -> Given:
        return Given(normal(seed, dims["rows"], dims["V"]))

    def call(impl: str | None, given: Given) -> Outcome:
        return Outcome(softmax_totals.softmax_totals(given.x, impl=impl))

    def cruel(given: Given) -> tuple[Given, Given]:
        x = given.x.at[:, ::2].set(-jnp.inf)
        if len(x) > 1:
            x = x.at[-1].set(-jnp.inf)
        if len(x) > 2:
            x = x.at[1, 1].set(jnp.nan)
        return given._replace(x=x), given._replace(x=x)

    return Case(SOFTMAX_TOTALS, dims, make, call, cruel)


def convolution(dims: Dims) -> Case:
    """The dims are B, T, C and W. Cruel is NaN in the last token: nothing before may see it."""
    batch, count, channels, width = dims.get("B", 1), dims["T"], dims["C"], dims["W"]

    def make(seed: int) -> Given:
        window = normal(seed + 1, batch, width - 1, channels)
        return Given(normal(seed, batch, count, channels), window, normal(seed + 2, channels, width))

    def call(impl: str | None, given: Given) -> Outcome:
        out, inputs = causal_conv1d.causal_conv1d(given.x, given.fixed, given.own, impl=impl)
        return Outcome(out, causal_conv1d.window_at(inputs, jnp.full((batch,), count), width - 1))

    def cruel(given: Given) -> tuple[Given, Given]:
        return given._replace(x=given.x.at[:, -1].set(jnp.nan)), given

    def judged(given: Given, outcome: Outcome) -> object:
        return jnp.where(jnp.isnan(given.x), 0, outcome.results)

    return Case(CAUSAL_CONV1D, dims, make, call, cruel, judged)


def _with_zeros_and_a_huge_value(given: Given) -> tuple[Given, Given]:
    x = given.x.at[0].set(0).at[-1, 0].set(_HUGE)
    return given._replace(x=x), given._replace(x=x)
