"""How much temporary memory a program needs, estimated from its operations without a compiler.

Operations are walked in order. What one has made is held until its last reader. Compilers fuse: an elementwise result
is held only if something else reads it than elementwise operations and reductions, or if it has several readers and
takes less than what it is made of. Views hold nothing, and what is updated in place is the same memory. Loops and
branches need as much as the most that they hold at one time. Compilers also reorder operations and copy between
layouts, which is not seen here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jax.extend import core

VIEWS = frozenset({"reshape", "squeeze", "expand_dims", "transpose", "slice", "rev", "bitcast_convert_type"})
IN_PLACE = frozenset({"dynamic_update_slice", "scatter", "scatter-add", "while", "psum", "pmax"})
# fmt: off
ELEMENTWISE = frozenset({
    "abs", "add", "and", "broadcast_in_dim", "ceil", "clamp", "convert_element_type", "copy", "cos", "div", "eq", "erf",
    "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "iota", "is_finite", "le", "log", "log1p", "logistic",
    "lt", "max", "min", "mul", "ne", "neg", "not", "optimization_barrier", "or", "pow", "reduce_precision", "rem",
    "round", "rsqrt", "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sqrt",
    "square", "sub", "tanh", "xor",
})
# fmt: on
REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin"})
FUSED_READERS = ELEMENTWISE | VIEWS | REDUCTIONS
"""Operations that are fused with the elementwise ones whose results they read."""
KERNELS = frozenset({"pallas_call"})


def peak_bytes(jaxpr: core.Jaxpr) -> int:
    """The most bytes that a program holds at one time besides its arguments."""
    equations, last, read = jaxpr.eqns, dict[Any, int](), set()
    readers = Counter[Any]()
    for index, equation in enumerate(equations):
        for variable in set(_variables(equation.invars)):
            last[variable] = index
            readers[variable] += 1
            if equation.primitive.name not in FUSED_READERS:
                read.add(variable)
    for variable in _variables(jaxpr.outvars):
        last[variable] = len(equations)
        read.add(variable)
    for equation in reversed(equations):
        if _is_view(equation) and any(variable in read for variable in equation.outvars):
            read.update(_variables(equation.invars))
    held_by = dict[Any, frozenset[Any]]()  # the results in memory of which something is made that has none of its own
    holding = set[int]()
    for index, equation in enumerate(equations):
        sources = frozenset[Any]().union(*(held_by.get(each, frozenset()) for each in _variables(equation.invars)))
        shared = any(readers[variable] > 1 for variable in equation.outvars)
        # Several readers of a sum, as layers are of the residual stream, would each need all that was added up.
        cheaper = shared and sum(map(_size, sources)) > sum(map(_size, equation.outvars))
        if _holds(equation, read) or (equation.primitive.name in ELEMENTWISE and not _is_view(equation) and cheaper):
            holding.add(index)
        for variable in equation.outvars:
            held_by[variable] = frozenset({variable}) if index in holding else sources
            for source in held_by[variable]:
                last[source] = max(last.get(source, index), last.get(variable, index))
    ending: dict[int, list[Any]] = {}
    for variable, index in last.items():
        ending.setdefault(index, []).append(variable)
    held: dict[Any, int] = {}
    live = most = 0
    for index, equation in enumerate(equations):
        made = sum(map(_size, equation.outvars)) if index in holding else 0
        inner = [peak_bytes(each) for each in _inner(equation)]
        # What a program hands through is held by whoever made it: it makes no more than it needs inside.
        own = min(made, max(inner)) if inner else made
        most = max(most, live + max(own, *inner, 0))
        for variable in equation.outvars:
            held[variable] = _size(variable) * own // made if made and variable in last else 0
            live += held[variable]
        for variable in ending.get(index, ()):
            live -= held.get(variable, 0)
    return most


def _holds(equation: Any, read: set[Any]) -> bool:
    """Whether results take memory of their own."""
    name = equation.primitive.name
    if _is_view(equation) or name in IN_PLACE:
        return False
    return name not in ELEMENTWISE or any(variable in read for variable in equation.outvars)


def _is_view(equation: Any) -> bool:
    """Whether the result is its argument in another shape; also where a broadcast only adds axes of length 1."""
    name = equation.primitive.name
    return name in VIEWS or (name == "broadcast_in_dim" and _size(equation.invars[0]) == _size(equation.outvars[0]))


def _variables(atoms: Any) -> Iterator[Any]:
    return (atom for atom in atoms if not isinstance(atom, core.Literal))


def _inner(equation: Any) -> Iterator[core.Jaxpr]:
    """The programs of loops, branches and calls. Kernels work in other memory."""
    if equation.primitive.name in KERNELS:
        return
    for value in equation.params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, core.ClosedJaxpr):
                yield each.jaxpr
            elif isinstance(each, core.Jaxpr):
                yield each


def _size(variable: Any) -> int:
    shape, dtype = getattr(variable.aval, "shape", ()), getattr(variable.aval, "dtype", None)
    return math.prod(shape) * getattr(dtype, "itemsize", 0)
