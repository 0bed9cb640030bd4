"""What a call of the gated delta rule is about: tokens, or records of tokens. Their first axes are B and T."""

from typing import NamedTuple

from jax import Array
from jaxtyping import Float

from pallas_kernels.table import Dims


class Tokens(NamedTuple):
    """The inputs of tokens; see the package's `api`."""

    q: Float[Array, "B T Hk Dk"]
    k: Float[Array, "B T Hk Dk"]
    v: Float[Array, "B T Hv Dv"]
    g: Float[Array, "B T Hv"]
    beta: Float[Array, "B T Hv"]

    @property
    def sizes(self) -> Dims:
        """Heads and widths, by axis letter."""
        return _sizes(self.k, self.v)


class Records(NamedTuple):
    """What `commit` needs to know of each verified token: its key, and g and u as they were applied to the state
    (float32).
    """

    k: Float[Array, "B T Hk Dk"]
    u: Float[Array, "B T Hv Dv"]
    g: Float[Array, "B T Hv"]

    @property
    def sizes(self) -> Dims:
        """Heads and widths, by axis letter."""
        return _sizes(self.k, self.u)


def _sizes(k: Array, values: Array) -> Dims:
    (hk, dk), (hv, dv) = k.shape[2:], values.shape[2:]
    return {"Hk": hk, "Hv": hv, "Dk": dk, "Dv": dv}
