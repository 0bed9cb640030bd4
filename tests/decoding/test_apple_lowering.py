"""The programs of an engine, lowered for Apple GPUs: of what they are made, held against what the plugins know.

It proves that a plugin accepts the programs by the names and types of their operations. What they compute there, and
how fast, only a Mac can tell.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from short_model import short_model

from benchmarks import programs
from specjax.state import KVTypes

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers")  # JAX lets no plugin for Apple take them over
# fmt: off
OPERATIONS = frozenset({
    "abs", "add", "and", "bitcast_convert", "broadcast_in_dim", "case", "compare", "concatenate", "constant", "convert",
    "cosine", "divide", "dot_general", "dynamic_slice", "dynamic_update_slice", "exponential", "floor", "gather",
    "iota", "is_finite", "log", "log_plus_one", "maximum", "minimum", "multiply", "negate", "not",
    "optimization_barrier", "or", "pad", "reduce", "reduce_window", "remainder", "reshape", "return", "rsqrt",
    "scatter", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "slice", "sqrt",
    "subtract", "transpose", "while", "xor",
})
# fmt: on
"""Operations of StableHLO that these programs have. jax-mps has a handler for each, by its source of July 2026."""
OTHERS = frozenset({"builtin.module", "chlo.top_k", "func.call", "func.func", "func.return"})
TYPES = frozenset({"f16", "f32", "i1", "i8", "i32", "ui8", "ui16", "ui32"})
"""Bfloat16 comes with files and caches that have it. Neither plugin has doubles."""
CACHES = KVTypes("q8_0", "turbo3")


@cache
def outlined(platform: str, rule: str, drafts: int, kv_types: KVTypes) -> programs.Outlined:
    """A model like the bundled one by shapes, with what is chosen on a platform."""
    settings: dict[str, Any] = {"rule": rule, "max_drafts": drafts, "kv_types": kv_types}
    return programs.Outlined.of(short_model(), platform, **settings)


PROGRAMS = {
    "greedy": lambda platform: outlined(platform, "greedy", 3, CACHES).rounds(1, 256),
    "plain": lambda platform: outlined(platform, "greedy", 0, KVTypes()).rounds(1, 256),
    "coupled": lambda platform: outlined(platform, "coupled", 2, KVTypes()).rounds(2, 256),
    "rejection": lambda platform: outlined(platform, "rejection", 2, KVTypes()).rounds(2, 256),
    "prompt": lambda platform: outlined(platform, "greedy", 3, CACHES).feeding(1, 256, columns=1, tokens=64),
}


@cache
def made_of(name: str, platform: str) -> tuple[set[str], set[str], int]:
    """Names of operations, types of elements, and the most arrays that one scatter writes."""
    names, types, scattered = set[str](), set[str](), 0
    lowered = PROGRAMS[name](platform)
    for operation in programs.operations(lowered.compiler_ir("stablehlo").operation):
        names.add(operation.name)
        results = list(operation.results)
        types |= {str(result.type.element_type) for result in results if hasattr(result.type, "element_type")}
        if operation.name == "stablehlo.scatter":
            scattered = max(scattered, len(results))
    return names, types, scattered


@pytest.mark.parametrize(("name", "platform"), [*((name, "mps") for name in PROGRAMS), ("greedy", "metal")])
def test_programs_for_apple_gpus_have_operations_and_types_that_the_plugins_know(name: str, platform: str) -> None:
    """mps is what jax-mps calls its platform, metal what metaljax does."""
    names, types, scattered = made_of(name, platform)
    assert not names - OTHERS - {f"stablehlo.{operation}" for operation in OPERATIONS}
    assert types <= TYPES
    assert scattered <= 1  # jax-mps refuses a scatter of several arrays


def test_the_list_of_operations_has_none_that_no_program_needs() -> None:
    used = {operation for name in PROGRAMS for operation in made_of(name, "mps")[0]}
    assert {f"stablehlo.{operation}" for operation in OPERATIONS} | OTHERS == used
