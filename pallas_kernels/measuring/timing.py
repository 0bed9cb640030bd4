"""How long a call takes: many in a row inside one program, each over memory of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax

from pallas_kernels.cases.case import Case, Given

PASSES = 2
"""Times that a loop's body visits each copy. A state goes from a buffer into another and back: no copy in between."""
UNWATCHED, MOST_TURNS = 1 << 29, 16
"""Bytes that calls read and write, and turns of a loop, until the host has to look whether to go on. It waits for the
device each time, which would count as the time of calls that are short."""


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Attributes:
        copies: of what calls use, at most.
        cache_bytes: what all copies together should exceed.
        seconds: of runs.
        runs: at least.
    """

    copies: int
    cache_bytes: int
    seconds: float
    runs: int

    def copies_of(self, case: Case) -> int:
        """How many copies of what a call uses are worked on in turn."""
        return max(1, min(self.copies, math.ceil(self.cache_bytes / case.num_bytes)))


def best_seconds(run: Callable[[], Any], effort: Effort) -> float:
    """Of some runs of what has run before."""
    times: list[float] = []
    while len(times) < effort.runs or sum(times) < effort.seconds:
        begin = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begin)
        if sum(times) > 10 * effort.seconds:  # a slow form is known well enough
            break
    return min(times)


Timing = Callable[[list[Given]], float]
"""From copies of what calls use to the seconds of a call."""


def timing(case: Case, impl: str | None, material: list[Given], effort: Effort) -> Timing:
    """Compile a program that makes many calls, over one copy of the material after the other.

    Returns:
        What runs it, with material like this.
    """
    passes = PASSES if jax.tree.leaves(material[0].own) else 1
    # A loop whose turns are known when it is compiled runs without the host. On a CPU the host is the device.
    in_turn = passes * len(material)
    alone = min(UNWATCHED // (in_turn * case.num_bytes), MOST_TURNS) if jax.default_backend() != "cpu" else 1
    turns = max(alone, 1)
    calls = in_turn * turns

    @jax.jit
    def step(given: Given) -> Given:
        # What is fixed must not be worked on ahead of the loop, as decoding of weights could be.
        return case.step(impl, lax.optimization_barrier(given))

    def body(_: Any, carry: tuple[Any, list[Any]], fixed: list[Any]) -> tuple[Any, list[Any]]:
        x, owns = carry[0], list(carry[1])
        for _pass in range(passes):
            for index, each in enumerate(fixed):
                x, owns[index], _ = step(Given(x, owns[index], each))
        return x, owns

    @jax.jit
    def program(repeats: Any, x: Any, owns: list[Any], fixed: list[Any]) -> tuple[Any, list[Any]]:
        each = partial(body, fixed=fixed)
        return lax.fori_loop(0, repeats, lambda _, carry: lax.fori_loop(0, turns, each, carry), (x, owns))

    def arguments_of(material: list[Given]) -> tuple[Any, ...]:
        return material[0].x, [each.own for each in material], [each.fixed for each in material]

    compiled = program.lower(1, *arguments_of(material)).compile()

    def run(material: list[Given]) -> float:
        arguments = arguments_of(material)
        jax.block_until_ready(compiled(1, *arguments))
        once = best_seconds(lambda: compiled(1, *arguments), Effort(1, 1, 0, 2))
        repeats = max(1, min(200, round(effort.seconds / 8 / max(once, 1e-7))))
        return best_seconds(lambda: compiled(repeats, *arguments), effort) / (repeats * calls)

    return run
