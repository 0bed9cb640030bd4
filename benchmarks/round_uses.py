"""What a program does with its arguments: how often it reads each of them, and how much it multiplies with them.

A program is walked as it was traced. Every argument that is named is followed through views, conversions and decoding,
as long as what is made of it depends on nothing else. The operation that combines it with something else reads it once.
A gather reads the rows that it takes. What is written in place is still the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax.extend import core

TAKES = frozenset({"gather", "dynamic_slice"})
PUTS = frozenset({"scatter", "dynamic_update_slice"})


@dataclass
class Uses:
    """What a program does with one argument.

    Attributes:
        products: times that all of it is multiplied with.
        others: times that all of it is read for something else, of all places where it is the most.
        taken: how much of it is taken in rows, as a share of the whole.
        put: how much of it is written in place, as a share of the whole.
        operations: multiplications and additions of products with it.
    """

    products: float = 0
    others: float = 0
    taken: float = 0
    put: float = 0
    operations: float = 0

    @property
    def reads(self) -> float:
        """Times that it must be read: a vector that is used in several places nearby is read once."""
        return self.products or self.others

    def __add__(self, other: Uses) -> Uses:
        return Uses(
            self.products + other.products,
            max(self.others, other.others),
            self.taken + other.taken,
            self.put + other.put,
            self.operations + other.operations,
        )


class _Value(NamedTuple):
    """What a variable is made of: names of arguments, and whether reading them has been counted."""

    names: frozenset[Any] = frozenset()
    counted: bool = False


@dataclass
class Walk:
    """Walks one program.

    Attributes:
        turns: of each `while` loop.
        uses: by name of an argument. None names products of which no factor is an argument.
    """

    turns: int
    uses: dict[Any, Uses] = field(default_factory=dict)

    def of(self, name: Any) -> Uses:
        """What is done with an argument."""
        return self.uses.setdefault(name, Uses())

    def run(self, jaxpr: core.Jaxpr, names: Sequence[Any]) -> None:
        """Walk a program whose arguments have these names; None for one that nobody asks for."""
        self._walk(jaxpr, [None if name is None else _Value(frozenset([name])) for name in names], 1)

    def _walk(self, jaxpr: core.Jaxpr, given: Sequence[_Value | None], times: float) -> list[_Value | None]:
        known: dict[Any, _Value] = dict.fromkeys(jaxpr.constvars, _Value())
        known |= {variable: value for variable, value in zip(jaxpr.invars, given, strict=True) if value is not None}

        def value_of(atom: Any) -> _Value | None:
            return _Value() if isinstance(atom, core.Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            arguments = [value_of(atom) for atom in equation.invars]
            inner = INNER.get(equation.primitive.name, _called)
            made = inner(self, equation, arguments, times)
            known |= {out: value for out, value in zip(equation.outvars, made, strict=True) if value is not None}
        return [value_of(atom) for atom in jaxpr.outvars]

    def _read(self, value: _Value | None, times: float) -> None:
        if value is not None and not value.counted:
            for name in value.names:
                uses = self.of(name)
                uses.others = max(uses.others, times)

    def _simple(self, equation: Any, arguments: Sequence[_Value | None], times: float) -> list[_Value | None]:
        """An operation without a program inside."""
        name, first = equation.primitive.name, arguments[0] if arguments else _Value()
        if name in TAKES and first is not None and first.names and None in arguments[1:]:
            share = _size(equation.outvars[0]) / max(_size(equation.invars[0]), 1)  # parts of layouts can be empty
            if not first.counted:
                for each in first.names:
                    self.of(each).taken += times * share
            return [first._replace(counted=True)]
        if name in PUTS and first is not None and first.names:
            updates = equation.invars[2 if name == "scatter" else 1]
            share = _size(updates) / _size(equation.invars[0])
            for each in first.names:
                self.of(each).put += times * share
            return [first]
        if name == "dot_general":
            return [self._product(equation, arguments, times)]
        if None not in arguments:
            values = [value for value in arguments if value is not None]
            counted = any(value.counted for value in values)
            if counted:  # rows that were taken, and what is combined with them
                for value in values:
                    self._read(value, times)
            return [_Value(frozenset().union(*(value.names for value in values)), counted)] * len(equation.outvars)
        for value in arguments:
            self._read(value, times)
        return [None] * len(equation.outvars)

    def _product(self, equation: Any, arguments: Sequence[_Value | None], times: float) -> None:
        (left, _), _ = equation.params["dimension_numbers"]
        shape = equation.invars[0].aval.shape
        operations = 2 * times * _size(equation.outvars[0]) * math.prod(shape[axis] for axis in left)
        values = [value for value in arguments if value is not None and value.names]
        whole = {name for value in values if not value.counted for name in value.names}
        factors = whole or {name for value in values for name in value.names} or {None}
        for name in factors:
            self.of(name).operations += operations / len(factors)
        for name in whole:
            self.of(name).products += times


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


Given = Sequence[_Value | None]


def _called(walk: Walk, equation: Any, arguments: Given, times: float) -> list[_Value | None]:
    """Programs that are called with the arguments as they are; kernels have none that is looked into."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        called = equation.params.get(key)
        if called is not None and equation.primitive.name != "pallas_call":
            return walk._walk(getattr(called, "jaxpr", called), arguments, times)
    return walk._simple(equation, arguments, times)


def _scan(walk: Walk, equation: Any, arguments: Given, times: float) -> list[_Value | None]:
    length, body = equation.params["length"], equation.params["jaxpr"].jaxpr
    # Releases of JAX differ in how they say how many there are of each kind. What turns share out has an axis more.
    split = sum(map(_as_wide, equation.invars, body.invars))
    constants = split - sum(map(_as_wide, equation.outvars, body.outvars))
    given = [*arguments[:constants], *map(_kept, arguments[constants:split])]
    rows = [None if value is None else value._replace(counted=True) for value in arguments[split:]]
    for value in arguments[split:]:  # each turn has its part of them
        walk._read(value, times)
    return walk._walk(body, [*given, *rows], times * length)


def _as_wide(outside: Any, inside: Any) -> bool:
    return len(outside.aval.shape) == len(inside.aval.shape)


def _while(walk: Walk, equation: Any, arguments: Given, times: float) -> list[_Value | None]:
    tested, constants = equation.params["cond_nconsts"], equation.params["body_nconsts"]
    given = arguments[tested : tested + constants]
    carried = [_kept(value) for value in arguments[tested + constants :]]
    return walk._walk(equation.params["body_jaxpr"].jaxpr, [*given, *carried], times * walk.turns)


def _cond(walk: Walk, equation: Any, arguments: Given, times: float) -> list[_Value | None]:
    """Of the branches the one that reads most."""
    tried = []
    for branch in equation.params["branches"]:
        own = Walk(walk.turns)
        made = own._walk(branch.jaxpr, arguments[1:], times)
        tried.append((sum(each.reads + each.taken for each in own.uses.values()), len(tried), own, made))
    _, _, taken, made = max(tried, key=lambda each: each[:2])
    for name, uses in taken.uses.items():
        walk.uses[name] = walk.of(name) + uses
    return made


def _kept(value: _Value | None) -> _Value | None:
    """What a loop carries is still an argument if it was one: it is written in place. Constants become results."""
    return value if value is not None and value.names else None


INNER: dict[str, Callable[[Walk, Any, Given, float], list[_Value | None]]] = {
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
