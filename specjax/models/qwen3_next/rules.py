"""Tensors in which the projections of gated delta nets lie together, key head by key head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from checkpoints.mapping.rule import Piece, Rule
from checkpoints.mapping.transforms import Shape
from specjax.models.qwen3_next.config import Qwen3NextConfig


@dataclass(frozen=True)
class Regrouped(Rule):
    """A tensor whose rows come group by group is several parameters, whose rows come part by part.

    In the file: for each group the rows of all parts. In a parameter: for each of its parts the rows of all groups.

    Attributes:
        groups: how many there are.
        parts: for each parameter the rows of each of its parts in one group; in the order of the file.
    """

    groups: int
    parts: tuple[tuple[int, ...], ...]

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(sum(rows for rows, *_ in shapes), *shapes[0][1:])]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        return [whole[order] for whole in (next(tensors),) for order in self._orders()]

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        yield np.concatenate(parameters)[np.argsort(np.concatenate(self._orders()))]

    def pieces(self, number: int, axis: int, entries: np.ndarray, shapes: Sequence[Shape]) -> Sequence[Piece] | None:
        order = self._orders()[number]
        return [Piece(self.sources[0], {0: order[entries]} if axis == 0 else {0: order, axis: entries})]

    def _orders(self) -> list[np.ndarray]:
        """For each parameter, which row of the tensor each of its rows is."""
        widths = [width for parts in self.parts for width in parts]
        rows = np.arange(self.groups * sum(widths)).reshape(self.groups, -1)
        pieces = iter(np.split(rows, np.cumsum(widths)[:-1], axis=1))
        return [np.concatenate([next(pieces).reshape(-1) for _ in parts]) for parts in self.parts]


def joint_qkvz(config: Qwen3NextConfig, source: str) -> Rule:
    """The rule for queries, keys, values and gates in one tensor of a layer."""
    keys = config.linear_key_width
    values = config.linear_value_heads // config.linear_key_heads * config.linear_value_width
    paths = ("delta_net.qkv_proj.weight", "delta_net.z_proj.weight")
    return Regrouped((source,), paths, config.linear_key_heads, ((keys, keys, values), (values,)))


def joint_ba(config: Qwen3NextConfig, source: str) -> Rule:
    """The rule for what betas and decays are made of, in one tensor of a layer."""
    heads = (config.linear_value_heads // config.linear_key_heads,)
    paths = ("delta_net.beta_proj.weight", "delta_net.alpha_proj.weight")
    return Regrouped((source,), paths, config.linear_key_heads, (heads, heads))
