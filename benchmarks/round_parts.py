"""The parts of a round: what each must read and write, and how much it multiplies. Computed by shapes.

A round is traced, and walked to see how often it reads each parameter (round_uses.py). What is counted is said by
roofline.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from device_rates import Rates
from programs import Outlined
from round_uses import Uses, Walk

from pallas_kernels import using
from pallas_kernels.matmul import QTensor
from pallas_kernels.recording import Calls, recording
from specjax.analysis.memory import bytes_on_device
from specjax.decoding.round import decode_round

PRODUCTS = "matmul.packed=reference,matmul.float=reference,cache_attention=reference"
"""Forms in which each product is one operation and its factors can be followed."""
FLOAT = 4


@dataclass(frozen=True)
class Part:
    """A part of a round.

    Attributes:
        drafting: whether it belongs to the drafter.
        num_bytes: read and written.
        operations: multiplications and additions.
    """

    name: str
    drafting: bool
    num_bytes: float = 0.0
    operations: float = 0.0

    def seconds(self, rates: Rates, arithmetic: str) -> tuple[float, float]:
        """By memory, and by arithmetic."""
        return self.num_bytes / rates.memory, self.operations / getattr(rates, arithmetic)


@dataclass(frozen=True)
class Round:
    """A round of a model: its parts, and how many drafts it has."""

    drafts: int
    parts: Sequence[Part]

    def seconds(self, rates: Rates, arithmetic: str, *, drafting: bool | None = None) -> float:
        """The least time, of all or of one half."""
        parts = (each for each in self.parts if drafting in (None, each.drafting))
        return sum(max(each.seconds(rates, arithmetic)) for each in parts)


def round_of(model: Outlined, batch: int, context: int) -> Round:
    """The parts of a round of so many sequences, each with so many tokens in its caches."""
    decoder, state = model.decoder, model.state(batch, context)
    drafts, rows = decoder.max_drafts, decoder.rows
    with using(PRODUCTS, platform="gpu"), recording() as calls:  # where no native kernels are
        traced = jax.jit(partial(decode_round, decoder)).trace(model.params, state)
        window = jax.eval_shape(lambda params, state: _window(decoder, params, state), model.params, state)
    parameters = list(_parameters(model.params))
    states = [(name, leaf) for name, leaf in _parts_of(state.sequences)]
    rest = len(jax.tree.leaves(state)) - len(states)
    walk = Walk(turns=max(drafts - 1, 0))  # the loop of a drafter begins after the first draft
    names: list[Any] = [(path, number) for path, each in parameters for number in range(len(jax.tree.leaves(each)))]
    # The sequences come first in a state, see `DecodeState`.
    names += [("state", index) for index in range(len(states))] + [None] * rest
    walk.run(traced.jaxpr.jaxpr, names)

    found: dict[tuple[str, bool], Part] = {}

    def add(name: str, drafting: bool, num_bytes: float, operations: float = 0.0) -> None:
        old = found.get((name, drafting), Part(name, drafting))
        new = replace(old, num_bytes=old.num_bytes + num_bytes, operations=old.operations + operations)
        found[name, drafting] = new

    for path, parameter in parameters:
        if "experts" in path and len(parameter.shape) == 3:
            router = f"{path.rpartition('.')[0]}.router.weight"
            passes = round(walk.of((router, 0)).products)  # each pass asks the router once
            if passes:
                fed = [batch * rows, *[batch] * (passes - 1)]  # a drafter begins with what was verified last
                add("experts", not path.startswith("target."), *_experts(parameter, _chosen(calls, parameter), fed))
            continue
        leaves = [(walk.of((path, number)), leaf) for number, leaf in enumerate(jax.tree.leaves(parameter))]
        for uses, leaf in leaves:
            for each, drafting in zip(_shares(path, uses, rows), (False, True), strict=True):
                size = bytes_on_device(leaf)
                if each.taken:
                    add("embedding rows", drafting, size * each.taken)
                if each.reads or each.operations:
                    add(_kind(path), drafting, size * each.reads, each.operations)
    for index, (name, leaf) in enumerate(states):
        uses, size = walk.of(("state", index)), bytes_on_device(leaf)
        drafting = name.startswith("drafter")
        if name == "tokens and settings":
            continue
        if "recurrent" in name:
            add(name, drafting, size * (3 if drafts else 2), uses.operations)
        else:
            add(name, drafting, size * (uses.reads + uses.taken + uses.put), uses.operations)
    records = bytes_on_device(window.layers) - bytes_on_device(state.sequences.layers)
    if drafts and records > 0:
        add("records of recurrent states", False, 2 * records)
    vocabulary = batch * decoder.target.vocab_size * FLOAT
    add("logits", False, 2 * rows * vocabulary)
    add("other products", False, 0.0, walk.of(None).operations)
    return Round(drafts, [part for part in found.values() if part.num_bytes or part.operations])


def _window(decoder: Any, params: Any, state: Any) -> Any:
    tokens = jnp.zeros((len(state.pending), decoder.rows), jnp.int32)
    n_valid = jnp.full_like(state.pending, decoder.rows)
    return decoder.target.verify(params, tokens, n_valid, state.sequences, request=decoder.request)[1]


def _parameters(params: Any) -> Iterator[tuple[str, Any]]:
    """All parameters in order: path, and an array or a packed matrix."""
    for keys, parameter in jax.tree.leaves_with_path(params, is_leaf=lambda leaf: isinstance(leaf, QTensor)):
        yield ".".join(str(key.key) for key in keys), parameter


def _parts_of(sequences: Any) -> Iterator[tuple[str, Any]]:
    """The arrays of a state in order, by what they belong to."""
    for layer in sequences.layers:
        kind = "recurrent states" if layer.limit is None and not layer.rings else "caches"
        yield from ((kind, leaf) for leaf in jax.tree.leaves(layer))
    yield from (("drafter's state", leaf) for leaf in jax.tree.leaves(sequences.drafter))
    yield "tokens and settings", sequences.length


def _shares(path: str, uses: Uses, rows: int) -> tuple[Uses, Uses]:
    """Of what is done with a parameter the target's and the drafter's.

    The target multiplies each of its own once, with all rows. What goes beyond is the drafter's, which has a row each
    time.
    """
    if not path.startswith("target."):
        return Uses(), uses
    if uses.products <= 1:
        return uses, Uses()
    own = uses.operations * rows / (rows + uses.products - 1)
    return replace(uses, products=1, operations=own), Uses(uses.products - 1, operations=uses.operations - own)


def _chosen(calls: Calls, stack: Any) -> int:
    """How many experts a row chooses from stacks of this shape, [E, F, D] or [E, D, F]."""
    count, *sides = stack.shape
    wanted = (count, sorted(sides))
    return next(
        dims["k"]
        for operation, dims in calls.made
        if operation == "matmul.experts" and (dims["E"], sorted((dims["F"], dims["D"]))) == wanted
    )


def _experts(stack: Any, chosen: int, passes: Sequence[int]) -> tuple[float, float]:
    """Bytes and operations of a stack of experts, of which each row chooses `chosen` by lot.

    The traced form is not asked: for more than a few rows it multiplies and reads blocks that are partly padding.

    Args:
        stack: the matrices [E, N, K] of all experts.
        chosen: by a row.
        passes: the rows of each pass. What a pass reaches is read once in it, and again in the next.
    """
    count, *sides = stack.shape
    reached = sum(1 - (1 - chosen / count) ** rows for rows in passes)
    return bytes_on_device(stack) * reached, 2.0 * chosen * sum(passes) * math.prod(sides)


def _kind(path: str) -> str:
    """What parameters of this path are called in the table."""
    names = path.split(".")
    if "lm_head" in names or "embed" in names:
        return "output head"
    if any("norm" in name for name in names):
        return "norms"
    inside = names[2:] if names[1].startswith("layers_") else names[1:]
    return next(name for name in inside if name not in ("layer", "block"))
