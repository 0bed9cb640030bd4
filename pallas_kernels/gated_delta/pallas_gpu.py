"""Recurrent verification with snapshots for NVIDIA GPUs since Hopper, in Pallas (Mosaic GPU).

One warpgroup holds Dk x 64 of one head's state in registers over all tokens: reductions over Dk stay inside a warp.
The state comes from the slot that `slot` names; slots are written in place, those that get no state are not touched.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.dispatch import Dims
from pallas_kernels.gated_delta.heads import HeadMap, key_head

COLUMNS = 64
LANE_ROWS = 4
# A warp owns 16 columns: 4 lanes along Dk times 8 lanes of two neighbouring columns, 64 bytes of a row in one access.
STATE = plgpu.Layout.TILED(
    plgpu.Tiling(((LANE_ROWS, COLUMNS), (16,), (2,))), warp_dims=(-3,), lane_dims=(-4, -2), vector_dim=-1
)
ALONG_DK, ALONG_DV = STATE.reduce(1), STATE.reduce(0)


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if dims["Dv"] % COLUMNS:
        return f"Dv={dims['Dv']} is not a multiple of {COLUMNS}"
    if dims["Dk"] % LANE_ROWS:
        return f"Dk={dims['Dk']} is not a multiple of {LANE_ROWS}"
    return None


class _Registers:
    """Loads and broadcasts with register layouts."""

    # jax 0.10 wants an index beside the reference, 0.11 deprecates it.
    _index: tuple[Any, ...] = ((),) if jax.__version_info__ < (0, 11) else ()

    @classmethod
    def load(cls, ref: Any, layout: Any) -> Array:
        return plgpu.load(ref, *cls._index, layout=layout, optimized=False).astype(jnp.float32)

    @staticmethod
    def spread(x: Array, shape: tuple[int, ...], axis: int) -> Array:
        return plgpu.layout_cast(lax.broadcast_in_dim(x, shape, (axis,)), STATE)


class _Interpreted:
    """The same for the interpreter, which knows no register layouts."""

    @staticmethod
    def load(ref: Any, layout: Any) -> Array:
        return ref[...].astype(jnp.float32)

    @staticmethod
    def spread(x: Array, shape: tuple[int, ...], axis: int) -> Array:
        return lax.broadcast_in_dim(x, shape, (axis,))


def _body(
    slot_ref, n_valid_ref, q_ref, k_ref, v_ref, decay_ref, beta_ref, slots_ref, out_ref,
    *, key_head_of: Callable[[Any], Any], scale: float, registers: type[_Registers | _Interpreted],
):  # fmt: skip
    load = registers.load
    row, head, tile = lax.axis_index("row"), lax.axis_index("head"), lax.axis_index("tile")
    key_head = key_head_of(head)
    columns = pl.ds(tile * COLUMNS, COLUMNS)
    n_slots = slots_ref.shape[1]
    n_valid = n_valid_ref[row]
    state = load(slots_ref.at[row, slot_ref[row], head, :, columns], STATE)
    for t in range(q_ref.shape[1]):
        k = registers.spread(load(k_ref.at[row, t, key_head], ALONG_DK), state.shape, 0)
        q = registers.spread(load(q_ref.at[row, t, key_head], ALONG_DK), state.shape, 0)
        v = load(v_ref.at[row, t, head, columns], ALONG_DV)
        state = state * decay_ref[row, t, head]
        u = beta_ref[row, t, head] * (v - jnp.sum(state * k, axis=0))
        state = state + k * registers.spread(u, state.shape, 1)
        out_ref[row, t, head, columns] = scale * jnp.sum(state * q, axis=0)
        age = n_valid - 1 - t

        @pl.when((age >= 0) & (age < n_slots))
        def _keep(state=state, age=age):
            slots_ref[row, age, head, :, columns] = state


@functools.partial(jax.jit, static_argnames=("head_map", "scale", "interpret"))  # references to GMEM exist under jit
def verify_snapshots(
    q: Array,
    k: Array,
    v: Array,
    g: Array,
    beta: Array,
    slots: Array,
    slot: Array,
    *,
    n_valid: Array,
    head_map: HeadMap,
    scale: float,
    interpret: bool = False,
) -> tuple[Array, Array]:
    """Outputs in float32 and the slots; padding rows of the inputs are zero."""
    hk, hv, dv = k.shape[2], *v.shape[2:]
    call = pl.kernel(
        functools.partial(
            _body,
            key_head_of=lambda head: key_head(head, hk, hv, head_map),
            scale=scale,
            registers=_Interpreted if interpret else _Registers,
        ),
        out_type=jax.ShapeDtypeStruct(v.shape, jnp.float32),
        mesh=plgpu.Mesh(grid=(v.shape[0], hv, dv // COLUMNS), grid_names=("row", "head", "tile")),
        # Explicit because the default differs between releases of jax.
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
        interpret=_interpreter() if interpret else False,
        name="gated_delta_verify_snapshots",
    )
    slots_ref = jax.new_ref(slots, memory_space=plgpu.GMEM)
    out = call(slot, n_valid, q, k, v, jnp.exp(g.astype(jnp.float32)), beta.astype(jnp.float32), slots_ref)
    return out, slots_ref[...]


def _interpreter() -> Any:
    # jax 0.11 has it as plgpu.InterpretGPUParams, jax 0.10 only here.
    from jax._src.pallas.mosaic_gpu.interpret.params import InterpretGPUParams

    return InterpretGPUParams()
