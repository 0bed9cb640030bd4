"""One head's state in the registers of a warpgroup (Mosaic GPU), and one token of the recurrence there.

A warp owns a quarter of the columns: 4 lanes along Dk times 8 lanes of neighbouring columns, so that a row of the tile
is one access and sums over Dk stay inside a warp. All kernels do the same operations in the same order, so that
`commit` gives the state that verification had.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from pallas_kernels.gated_delta.config import GpuConfig
from pallas_kernels.gated_delta.heads import HeadMap, key_head
from pallas_kernels.gated_delta.tokens import Records, Tokens
from pallas_kernels.mosaic_gpu import interpreter, laid_out, load, plgpu
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


class Place(NamedTuple):
    """What a program works on: a row, a value head with its key head, and columns of the state."""

    row: Any
    head: Any
    key_head: Any
    columns: Any


@dataclass(frozen=True)
class Registers:
    """A tile of `columns` of each head's state: loads and broadcasts with register layouts, or without for the
    interpreter, and kernels that have a program for each tile.
    """

    columns: int
    sizes: tuple[int, ...]
    head_map: HeadMap
    interpreted: bool

    @classmethod
    def of(cls, given: Tokens | Records, config: GpuConfig, head_map: HeadMap, interpreted: bool) -> Registers:
        """Those for tokens or records."""
        return cls(config.columns, tuple(given.sizes.values()), head_map, interpreted)

    @property
    def state(self) -> Any:
        per_warp = self.columns // WARPS
        tiling = plgpu.Tiling(((LANE_ROWS, self.columns), (per_warp,), (per_warp // LANE_COLUMNS,)))
        return plgpu.Layout.TILED(tiling, warp_dims=(-3,), lane_dims=(-4, -2), vector_dim=-1)

    def kernel(self, name: str, body: Callable[..., None], n_rows: int, out_type: Any, **settings: Any) -> Any:
        """`body(*refs, registers=self, **settings)` in a program for each row, value head and tile of columns."""
        _, n_heads, _, width = self.sizes
        return pl.kernel(
            partial(body, registers=self, **settings),
            out_type=out_type,
            mesh=plgpu.Mesh(grid=(n_rows, n_heads, width // self.columns), grid_names=("row", "head", "tile")),
            name=f"gated_delta_{name}",
            # Explicit because the default differs between releases of jax.
            compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
            interpret=interpreter() if self.interpreted else False,
        )

    def place(self) -> Place:
        """What this program works on."""
        row, head, tile = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("tile")
        n_key_heads, n_value_heads, *_ = self.sizes
        columns = pl.ds(tile * self.columns, self.columns)
        return Place(row, head, key_head(head, n_key_heads, n_value_heads, self.head_map), columns)

    def load_state(self, ref: Any) -> Array:
        """Load a tile of the state, [Dk, columns], as float32."""
        return self._load(ref, self.state)

    def load_key(self, ref: Any, at: Place, t: Array) -> Array:
        """[Dk] of a token spread over the columns, in float32."""
        key = self._load(ref.at[at.row, t, at.key_head], self.state.reduce(1))
        return self.spread(key, (ref.shape[-1], self.columns), 0)

    def load_value(self, ref: Any, at: Place, t: Array) -> Array:
        """[columns] of a token, which vary along Dv, in float32."""
        return self._load(ref.at[at.row, t, at.head, at.columns], self.state.reduce(0))

    def spread(self, x: Array, shape: tuple[int, ...], axis: int) -> Array:
        """[n] -> [Dk, columns], x along `axis`."""
        return laid_out(lax.broadcast_in_dim(x, shape, (axis,)), self.state, interpreted=self.interpreted)

    def _load(self, ref: Any, layout: Any) -> Array:
        return load(ref, layout, interpreted=self.interpreted).astype(jnp.float32)

    def decay(self, state: Array, factor: Array) -> Array:
        """The state before the token's update; `factor` is exp(g)."""
        return state * factor

    def add(self, state: Array, k: Array, u: Array) -> Array:
        """The state with k, spread over the columns, times u [columns] added."""
        return state + k * self.spread(u, state.shape, 1)

    def step(self, state: Array, tokens: Tokens, at: Place, t: Array, scale: float) -> tuple[Array, Array, Array]:
        """State, u and output of a token; `tokens` are references, with exp(g) for g."""
        q, k = self.load_key(tokens.q, at, t), self.load_key(tokens.k, at, t)
        v, factor, beta = self.load_value(tokens.v, at, t), *(x[at.row, t, at.head] for x in tokens[3:])
        state = self.decay(state, factor)
        u = beta * (v - jnp.sum(state * k, axis=0))
        state = self.add(state, k, u)
        return state, u, scale * jnp.sum(state * q, axis=0)


def with_factors(tokens: Tokens) -> Tokens:
    """With exp(g) for g, and beta, in float32."""
    return tokens._replace(g=jnp.exp(tokens.g.astype(jnp.float32)), beta=tokens.beta.astype(jnp.float32))
