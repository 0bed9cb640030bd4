"""Attention of few rows for TPU, in Pallas (Mosaic), over caches of every format.

The grid walks sequences and tiles of slots; a step has all KV heads of a tile, whose vectors lie side by side in the
cache, and decodes them one head at a time. Tiles that no row of the sequence sees are not read: their step names the
block that is there already. Softmax is that of Milakov and Gimelshein, arXiv 1805.02867, which `xla_tiles` has as well.

Products have float32 sums. Their operands are float32 for caches of f32 and f16, and bfloat16 for all others: it holds
integer codes exactly, while centroids, queries and weights are rounded.

VMEM at the shapes of Qwen3.6-27B (G 4, N 256): two blocks of keys and values each, 4 MiB in bf16 and 8 MiB in f32 at
tiles of 512; 256 over quantized caches, where decoded values, scores and weights take most of it.

Mosaic takes no float16: scales come in as their bits, for which XLA copies all of a cache's scales in each call, a
sixteenth (q8_0) of its codes. The codes of an f16 cache are copied so as well, which triples what is read and written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.block_sizes import BlockSizes, multiple_of
from pallas_kernels.cache_attention.arguments import too_many_rows
from pallas_kernels.cache_attention.call import Call
from pallas_kernels.cache_attention.examples import full_cache, model_shapes
from pallas_kernels.cache_attention.heads import by_kv_head, by_token
from pallas_kernels.cache_attention.lanes import Lanes, iota, lanes_of
from pallas_kernels.cache_attention.softmax import capped
from pallas_kernels.cache_attention.visibility import in_span, spans, visible_tiles
from pallas_kernels.elementwise import float_of_half
from pallas_kernels.kv_formats import KVStore, format_named
from pallas_kernels.table import Dims
from pallas_kernels.tuning import Tunable, config_for

MOST_QUERIES = 256
"""The most query rows times heads that share a KV head."""

LANES, SUBLANES = 128, 8


@dataclass(frozen=True)
class Config(BlockSizes):
    """Block sizes.

    Attributes:
        tile: slots of a step; a multiple of 128. Caches no larger are one tile.
    """

    tile: int = multiple_of(LANES)


BLOCK_BYTES = 4 << 20
"""The most bytes of keys and values of one tile. VMEM has two tiles."""


MOST_DECODED = 256 * 256
"""Bounds the values of a head in a tile that are decoded, of which there are many intermediate forms."""

MOST_SCORES = 512 * 64
"""Bounds the scores of a KV head with a tile. Where 8 groups of values are scaled apart, VMEM has 8 times as many."""


VMEM = 13 << 20
"""Bytes of what `_vmem` counts, of the 16 MiB that Mosaic grants. By the compiler's word, 64 heads of 16 rows on 8 KV
heads over q8_0, 256 wide, take 16.3 MiB, of which it counts 13.1."""


def heuristic(dims: Dims) -> Config:
    """The largest tile: a step costs a fixed time beside its transfers."""
    return candidates(dims)[-1]


def candidates(dims: Dims) -> list[Config]:
    """Tiles up to 1024 of which two fit into VMEM with what is made of one."""
    kinds = [format_named(dims[name]) for name in ("k_type", "v_type")]
    slot_bytes = dims["G"] * sum(kind.num_bytes(dims["N"]) for kind in kinds)
    queries = dims["T"] * dims["H"] // dims["G"]
    most = min(BLOCK_BYTES // slot_bytes, MOST_SCORES // queries)
    if any(kind.quantized for kind in kinds):
        most = min(most, MOST_DECODED // dims["N"])
    tiles = (LANES, *(tile for tile in (256, 512, 1024) if tile <= most))
    return [Config(tile) for tile in tiles if _vmem(dims, tile) <= VMEM]


def _vmem(dims: Dims, tile: int) -> int:
    """Bytes: two buffers of keys, values, queries and outputs, the sums, and scores with what is made of them."""
    kinds = [format_named(dims[name]) for name in ("k_type", "v_type")]
    keys, values = (lanes_of(kind, dims["N"]) for kind in kinds)
    rows = -(-dims["T"] * dims["H"] // dims["G"] // SUBLANES) * SUBLANES
    slots = tile * sum(kind.num_bytes(dims["N"]) for kind in kinds)

    def whole(lanes: int) -> int:
        return -(-lanes // LANES) * LANES

    queries = rows * keys.runs * whole(keys.chunk_lanes) * 4
    sums = rows * len(values.order) * whole(values.lanes) * 4
    apart = max(len(chunk.runs) for chunk in (*keys.chunks, *values.chunks))
    return dims["G"] * (2 * slots + 2 * queries + 3 * sums) + 16 * rows * tile * apart


def unfit(dims: Dims) -> str | None:
    """Why these sizes cannot be served, or None."""
    if (reason := too_many_rows(dims)) is not None:
        return reason
    if (queries := dims["T"] * dims["H"] // dims["G"]) > MOST_QUERIES:
        return f"T * H / G = {queries}: made for at most {MOST_QUERIES} queries of a KV head"
    if (size := _vmem(dims, LANES)) > VMEM:
        return f"{LANES} slots and the queries take {size / 2**20:.3g} MiB of VMEM: made for at most {VMEM >> 20} MiB"
    return None


@dataclass(frozen=True)
class _Step:
    """What is static in the kernel."""

    keys: Lanes
    values: Lanes
    rows: int
    tile: int
    capacity: int
    scale: float
    soft_cap: float | None

    def weigh(self, q_ref: Any, k_ref: Mapping[str, Any], head: int, seen: Array, some: Array) -> Array:
        """[R, tile]: scores of a head; anything where a row does not see a slot."""
        planes = self.keys.decode(_codes(k_ref, head))
        scales = _scales(k_ref, head, some)
        scores = jnp.zeros((self.rows, self.tile), jnp.float32)
        for chunk in self.keys.chunks:
            q = q_ref[head, pl.ds(chunk.at * self.rows, len(chunk.runs) * self.rows), pl.ds(0, chunk.lanes)]
            products = lax.dot_general(
                q.astype(self.keys.product_type),
                planes[chunk.plane][:, chunk.first : chunk.last].astype(self.keys.product_type),
                (((1,), (1,)), ((), ())),
                precision=self.keys.precision,
                preferred_element_type=jnp.float32,
            )
            for index, run in enumerate(chunk.runs):
                part = products[index * self.rows : (index + 1) * self.rows]
                scores += part if scales is None else part * scales[run.group : run.group + 1]
        return jnp.where(seen, capped(scores * self.scale, self.soft_cap), -jnp.inf)

    def add(self, sums_ref: Any, v_ref: Mapping[str, Any], head: int, weights: Array, fade: Array, seen: Array,
            some: Array) -> None:  # fmt: skip
        """Add weighted values to what was there, after it has faded."""
        planes = self.values.decode(_codes(v_ref, head))
        scales = _scales(v_ref, head, some)
        if scales is None:  # what is not seen may be anything, and zero times anything is not always zero
            planes = [jnp.where(seen, plane, 0) for plane in planes]
        for chunk in self.values.chunks:
            at = head, chunk.plane, slice(None), pl.ds(chunk.first, chunk.lanes)
            scaled = [weights if scales is None else weights * scales[run.group : run.group + 1] for run in chunk.runs]
            products = lax.dot_general(
                jnp.concatenate(scaled).astype(self.values.product_type),
                planes[chunk.plane][:, chunk.first : chunk.last].astype(self.values.product_type),
                (((1,), (0,)), ((), ())),
                precision=self.values.precision,
                preferred_element_type=jnp.float32,
            )
            added = products[: self.rows]
            lane = iota(added.shape, 1)
            for index, run in enumerate(chunk.runs[1:], 1):
                part = products[index * self.rows : (index + 1) * self.rows]
                added = jnp.where(lane >= run.first, part, added)
            sums_ref[at] = sums_ref[at] * fade + added


def _codes(ref: Mapping[str, Any], head: int) -> Array:
    """[tile, lanes] of a head."""
    codes = ref["codes"]
    return codes[:, head, :] if len(codes.shape) == 3 else codes[...]


def _scales(ref: Mapping[str, Any], head: int, some: Array) -> Array | None:
    """[groups, tile] float32, zero for slots that no row sees."""
    return jnp.where(some, float_of_half(ref["scales"][head].astype(jnp.int32)), 0) if "scales" in ref else None


def _body(
    read_ref, spans_ref, spans_as_rows_ref, sinks_ref, q_ref, k_ref, v_ref, out_ref, highest_ref, total_ref, sums_ref,
    *, step: _Step,
):  # fmt: skip
    sequence, index, tiles = pl.program_id(0), pl.program_id(1), pl.num_programs(1)

    @pl.when(index == 0)
    def _begin():
        # A sink is a score without a value.
        highest_ref[...] = sinks_ref[...]
        total_ref[...] = jnp.where(sinks_ref[...] == -jnp.inf, 0.0, 1.0)
        sums_ref[...] = jnp.zeros_like(sums_ref)

    at = sequence * tiles + index

    @pl.when(read_ref[at] == at)
    def _add():
        def seen_by(own: Array, reach: Array, axis: int) -> Array:
            shape = (step.rows, step.tile) if axis else (step.tile, step.rows)
            slots = index * step.tile + iota(shape, axis)
            return (slots < step.capacity) & in_span(own, reach, slots, step.capacity)

        def by_some(seen: Array, axis: int) -> Array:
            return jnp.max(jnp.where(seen, 1.0, 0.0), axis=axis, keepdims=True) > 0

        seen = seen_by(spans_ref[:, 0:1], spans_ref[:, 1:2], 1)
        some = by_some(seen, 0)
        some_column = by_some(seen_by(spans_as_rows_ref[0:1], spans_as_rows_ref[1:2], 0), 1)
        for head in range(q_ref.shape[0]):
            scores = step.weigh(q_ref, k_ref, head, seen, some)
            before = highest_ref[head]
            highest = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            base = jnp.where(highest == -jnp.inf, 0.0, highest)
            weights, fade = jnp.exp(scores - base), jnp.exp(before - base)
            highest_ref[head] = highest
            total_ref[head] = total_ref[head] * fade + jnp.sum(weights, axis=1, keepdims=True)
            step.add(sums_ref, v_ref, head, weights, fade, some_column, some)

    @pl.when(index == tiles - 1)
    def _end():
        for head in range(q_ref.shape[0]):
            total = total_ref[head]
            for plane in range(sums_ref.shape[1]):
                out_ref[head, plane] = sums_ref[head, plane] / jnp.where(total == 0, 1.0, total)


def attend(call: Call, *, config: Config | None = None, interpret: bool = False) -> Array:
    """[B, T, H, N] float32; zeros for a row that sees nothing.

    B may be a multiple of the number of caches: then neighbouring ones are blocks of rows of one sequence.
    """
    (batch, n_rows, heads, width), (sequences, capacity, kv_heads, _) = call.q.shape, call.k.shape
    tile = min(config_for(TUNABLE, call.sizes("T"), config).tile, capacity)
    keys, values = lanes_of(call.k.kind, width), lanes_of(call.v.kind, width)
    n_queries = n_rows * call.per_kv_head
    rows = -(-n_queries // SUBLANES) * SUBLANES
    tiles, blocks = pl.cdiv(capacity, tile), batch // sequences

    def padded(x: Array, axis: int, value: float) -> Array:
        widths = [(0, rows - n_queries if a == axis else 0) for a in range(x.ndim)]
        return jnp.pad(x, widths, constant_values=value)

    queries = keys.spread_queries(padded(by_kv_head(call.rotated_queries(), kv_heads), 2, 0))
    query_spans = jnp.stack(spans(call.positions, capacity, call.window), axis=-1)
    query_spans = padded(jnp.repeat(query_spans, call.per_kv_head, axis=1), 1, 0)
    logits = by_kv_head(jnp.broadcast_to(call.logits(), (batch, n_rows, heads)), kv_heads)
    read = _blocks_to_read(visible_tiles(call.positions, tile, capacity, call.window))

    def of_sequence(b, t, read_ref):
        return b, 0, 0

    def of_sequence_and_head(b, t, read_ref):
        return b, 0, 0, 0

    def codes_at(b, t, read_ref):
        at = read_ref[b * tiles + t]
        return lax.div(at, tiles * blocks), lax.rem(at, tiles), *(0,) * (1 if kv_heads == 1 else 2)

    def scales_at(b, t, read_ref):
        at = read_ref[b * tiles + t]
        return lax.div(at, tiles * blocks), 0, 0, lax.rem(at, tiles)

    def of_store(store: KVStore) -> tuple[dict[str, Array], dict[str, pl.BlockSpec]]:
        codes = store.parts["codes"]
        # XLA lays a cache of a single head out without that axis, and would copy all of it to one that has the axis.
        codes = codes[:, :, 0] if kv_heads == 1 else codes
        arrays = {"codes": _bits(codes) if codes.dtype == jnp.float16 else codes}
        specs = {"codes": pl.BlockSpec((None, tile, *codes.shape[2:]), codes_at)}
        if "scales" in store.parts:
            # Slots last: that is how XLA lays so narrow an array out, and scores have their slots there too.
            arrays["scales"] = jnp.moveaxis(_bits(store.parts["scales"]), 1, 3)
            specs["scales"] = pl.BlockSpec((None, *arrays["scales"].shape[1:3], tile), scales_at)
        return arrays, specs

    (k_arrays, k_specs), (v_arrays, v_specs) = of_store(call.k), of_store(call.v)
    sums_shape = (kv_heads, len(values.order), rows, values.lanes)
    out = pl.pallas_call(
        partial(_body, step=_Step(keys, values, rows, tile, capacity, call.scale, call.soft_cap)),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, tiles),
            in_specs=[
                pl.BlockSpec((None, rows, 2), of_sequence),
                pl.BlockSpec((None, 2, rows), of_sequence),
                pl.BlockSpec((None, kv_heads, rows, 1), of_sequence_and_head),
                pl.BlockSpec((None, *queries.shape[1:]), of_sequence_and_head),
                k_specs,
                v_specs,
            ],
            out_specs=pl.BlockSpec((None, *sums_shape), lambda b, t, read_ref: (b, 0, 0, 0, 0)),
            scratch_shapes=[
                pltpu.VMEM((kv_heads, rows, 1), jnp.float32),
                pltpu.VMEM((kv_heads, rows, 1), jnp.float32),
                pltpu.VMEM(sums_shape, jnp.float32),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((batch, *sums_shape), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=pltpu.InterpretParams() if interpret else False,
        name="cache_attention",
    )(
        read,
        query_spans,
        jnp.swapaxes(query_spans, 1, 2),
        padded(logits, 2, -jnp.inf)[..., None],
        queries,
        k_arrays,
        v_arrays,
    )
    out = values.gather_values(out)[:, :, :n_queries]
    return call.v.kind.unrotate(by_token(out, n_rows), width)


def _bits(x: Array) -> Array:
    return lax.bitcast_convert_type(x, jnp.uint16)


def _blocks_to_read(seen: Array) -> Array:
    """[B * n]: for each step its own index where its tile is seen, else that of a block which is at hand.

    This is the block that was seen last, or the first one that will be seen.
    """
    seen = seen.reshape(-1)
    index = jnp.arange(seen.size, dtype=jnp.int32)
    return jnp.maximum(lax.cummax(jnp.where(seen, index, 0)), jnp.argmax(seen).astype(jnp.int32))


SHAPES = model_shapes(T=4, S=32768)
TUNABLE = Tunable("cache_attention", "pallas_tpu", Config, heuristic, candidates, SHAPES, full_cache, attend)
