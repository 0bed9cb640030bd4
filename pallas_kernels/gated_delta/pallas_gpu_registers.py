"""One head's state in the registers of a warpgroup (Mosaic GPU), and one token of the recurrence there.

A warp owns a quarter of the columns: 4 lanes along Dk times 8 lanes of neighbouring columns, so that a row of the tile
is one access and sums over Dk stay inside a warp. All kernels do the same operations in the same order, so that
`commit` gives the state that verification had.
"""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.mosaic_gpu import interpreter, load
from pallas_kernels.table import Dims

LANE_ROWS = 4
WARPS, LANE_COLUMNS = 4, 8
MIN_COLUMNS = WARPS * LANE_COLUMNS
MAX_ROWS = 512  # of 32 columns: 128 values a thread


def unfit(dims: Dims) -> str | None:
    """Why a state of these sizes cannot lie in registers, or None."""
    if dims["Dk"] % LANE_ROWS:
        return f"Dk={dims['Dk']} is not a multiple of {LANE_ROWS}"
    if dims["Dv"] % MIN_COLUMNS:
        return f"Dv={dims['Dv']} is not a multiple of {MIN_COLUMNS}"
    if dims["Dk"] > MAX_ROWS:
        return f"Dk={dims['Dk']} is more than {MAX_ROWS}"
    return None


@dataclass(frozen=True)
class Registers:
    """Loads and broadcasts of a tile of `columns` with register layouts, or without for the interpreter."""

    columns: int
    interpreted: bool

    @property
    def state(self) -> Any:
        per_warp = self.columns // WARPS
        tiling = plgpu.Tiling(((LANE_ROWS, self.columns), (per_warp,), (per_warp // LANE_COLUMNS,)))
        return plgpu.Layout.TILED(tiling, warp_dims=(-3,), lane_dims=(-4, -2), vector_dim=-1)

    def load_state(self, ref: Any) -> Array:
        """Load a tile of the state, [Dk, columns], as float32."""
        return self._load(ref, self.state)

    def load_row(self, ref: Any) -> Array:
        """[columns], which varies along Dv, in float32."""
        return self._load(ref, self.state.reduce(0))

    def load_column(self, ref: Any) -> Array:
        """[Dk] spread over the columns, in float32."""
        return self.spread(self._load(ref, self.state.reduce(1)), (ref.shape[0], self.columns), 0)

    def spread(self, x: Array, shape: tuple[int, ...], axis: int) -> Array:
        """[n] -> [Dk, columns], x along `axis`."""
        x = lax.broadcast_in_dim(x, shape, (axis,))
        return x if self.interpreted else plgpu.layout_cast(x, self.state)

    def _load(self, ref: Any, layout: Any) -> Array:
        return load(ref, layout, interpreted=self.interpreted).astype(jnp.float32)

    def decay(self, state: Array, factor: Array) -> Array:
        """The state before the token's update; `factor` is exp(g)."""
        return state * factor

    def add(self, state: Array, k: Array, u: Array) -> Array:
        """The state with k, spread over the columns, times u [columns] added."""
        return state + k * self.spread(u, state.shape, 1)

    def step(
        self, state: Array, q: Array, k: Array, v: Array, factor: Array, beta: Array, scale: float
    ) -> tuple[Array, Array, Array]:
        """State, u and output of one token; q and k are spread over the columns, v is a row."""
        state = self.decay(state, factor)
        u = beta * (v - jnp.sum(state * k, axis=0))
        state = self.add(state, k, u)
        return state, u, scale * jnp.sum(state * q, axis=0)


def kernel_options(registers: Registers) -> dict[str, Any]:
    """What every kernel here gives to `pl.kernel`."""
    return {
        # Explicit because the default differs between releases of jax.
        "compiler_params": plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        "interpret": interpreter() if registers.interpreted else False,
    }
