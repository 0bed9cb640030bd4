"""What the kernels of others take for the same calls on an NVIDIA GPU, where they are installed.

    pip install torch flashinfer-python flash-linear-attention

They are given the sizes of a case, arrays of their own in the types that they are made for (bfloat16, states float32),
and as many copies as our kernels; a CUDA graph of calls is timed. Their results are not compared with ours. The gated
delta rule of flash-linear-attention writes the state after all tokens, which `verify` does not: it leaves records for
`commit`.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax

from pallas_kernels.cases import Given

CALLS, RUNS = 32, 10
LARGEST_PAGE = 16
"""Slots of a page; 16 is vLLM's default."""
WORKSPACE_BYTES = 128 << 20
"""For the parts of split caches; FlashInfer's documentation recommends it."""


def peers(operation: str, given: Given) -> Iterator[tuple[str, Callable[[int], float]]]:
    """Names, and functions from a number of copies to the seconds of a call; nothing but on an NVIDIA GPU."""
    if jax.default_backend() != "gpu" or importlib.util.find_spec("torch") is None:
        return
    if operation == "cache_attention" and given.fixed[0].format == "bf16":
        makers = {"torch_sdpa": sdpa_calls}
        if importlib.util.find_spec("flashinfer") is not None:
            makers["flashinfer"] = flashinfer_calls
        for name, make in makers.items():
            yield name, partial(graph_seconds, partial(make, given.x.shape, given.fixed[0].shape, device="cuda"))
    kinds = {"gated_delta.verify": "fused_recurrent", "gated_delta.prefill": "chunk"}
    if operation in kinds and importlib.util.find_spec("fla") is not None:
        inputs = given.fixed[0][0] if operation == "gated_delta.verify" else given.fixed[0]
        calls = partial(gated_delta_calls, kinds[operation], inputs[0].shape, given.x.shape)
        yield f"fla_{kinds[operation]}", partial(graph_seconds, calls)


def sdpa_calls(shape: tuple[int, ...], keys: tuple[int, ...], copies: int, *, device: str) -> list[Callable[[], Any]]:
    """torch's scaled_dot_product_attention of rows at a cache's end: row t sees all slots but the T - 1 - t last.

    Args:
        shape: of the queries, [B, T, H, N].
        keys: their shape, [B, S, G, N].
        copies, device: of the arrays.
    """
    import torch
    from torch.nn.attention.bias import causal_lower_right

    (batch, rows, heads, width), (_, slots, groups, _) = shape, keys
    settings: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    # Flash attention takes no mask of booleans: with one a slower kernel would be timed.
    seen = None if rows == 1 else causal_lower_right(rows, slots)

    def one() -> Callable[[], Any]:
        q = torch.randn(batch, heads, rows, width, **settings)
        k, v = (torch.randn(batch, groups, slots, width, **settings) for _ in range(2))
        attend = torch.nn.functional.scaled_dot_product_attention
        return lambda: attend(q, k, v, attn_mask=seen, enable_gqa=True)

    return [one() for _ in range(copies)]


def flashinfer_calls(
    shape: tuple[int, ...], keys: tuple[int, ...], copies: int, *, device: str
) -> list[Callable[[], Any]]:
    """The same by FlashInfer's kernel of paged caches, planned once, as an engine plans it for all layers."""
    import flashinfer
    import torch

    (batch, rows, heads, width), (_, slots, groups, _) = shape, keys
    page = math.gcd(slots, LARGEST_PAGE)
    settings: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    starts, pages = (torch.arange(batch + 1, dtype=torch.int32) * step for step in (rows, slots // page))
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(
        torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device), "NHD"
    )
    wrapper.plan(
        starts.to(device),
        pages.to(device),
        torch.arange(batch * slots // page, dtype=torch.int32, device=device),
        torch.full((batch,), page, dtype=torch.int32, device=device),
        heads,
        groups,
        width,
        page,
        causal=True,
        q_data_type=torch.bfloat16,
    )

    def one() -> Callable[[], Any]:
        q = torch.randn(batch * rows, heads, width, **settings)
        cache = tuple(torch.randn(batch * slots // page, page, groups, width, **settings) for _ in range(2))
        return lambda: wrapper.run(q, cache)

    return [one() for _ in range(copies)]


def gated_delta_calls(
    kind: str, keys: tuple[int, ...], values: tuple[int, ...], copies: int
) -> list[Callable[[], Any]]:
    """flash-linear-attention's fused_recurrent_gated_delta_rule or chunk_gated_delta_rule, with a state in and out."""
    import torch
    from fla.ops import gated_delta_rule

    rule = getattr(gated_delta_rule, f"{kind}_gated_delta_rule")
    settings: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}

    def one() -> Callable[[], Any]:
        q, k = (torch.nn.functional.normalize(torch.randn(*keys, **settings), dim=-1) for _ in range(2))
        v = torch.randn(*values, **settings)
        g = torch.nn.functional.logsigmoid(torch.randn(*values[:-1], device="cuda") + 3)
        beta = torch.rand(*values[:-1], device="cuda").to(torch.bfloat16)
        state = torch.randn(values[0], values[2], keys[-1], values[-1], device="cuda")
        return torch.no_grad()(lambda: rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True))

    return [one() for _ in range(copies)]


def graph_seconds(make: Callable[[int], list[Callable[[], Any]]], copies: int) -> float:
    """Of one call, the best of several replays of a CUDA graph of calls on one copy after the other."""
    import torch

    calls = make(copies)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # compiles and tunes, which cannot be done while a graph is recorded
        for call in calls * 3:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for index in range(CALLS):
            calls[index % len(calls)]()
    times = []
    for _ in range(RUNS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return min(times) / CALLS
