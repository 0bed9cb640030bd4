"""Tensors in which the projections of gated delta nets lie together, key head by key head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from checkpoints.mapping.rule import Rule
from checkpoints.mapping.transforms import Shape
from specjax.models.qwen3_next.config import Qwen3NextConfig


@dataclass(frozen=True)
class Regrouped:
    """A tensor whose rows come group by group is several parameters, whose rows come part by part.

    In the file: for each group the rows of all parts. In a parameter: for each of its parts the rows of all groups.

    Attributes:
        source: the tensor.
        groups: how many there are.
        parts: parameter path -> rows of each of its parts in one group; in the order of the file.
    """

    source: str
    groups: int
    parts: Mapping[str, tuple[int, ...]]

    @property
    def sources(self) -> tuple[str, ...]:
        return (self.source,)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self.parts)

    @property
    def keeps_rows(self) -> bool:
        return True

    @property
    def moves_values(self) -> bool:
        return True

    def source_shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        return [(sum(rows for rows, *_ in shapes), *shapes[0][1:])]

    def forward(self, tensors: Iterator[np.ndarray]) -> list[np.ndarray]:
        return [whole[order] for whole in (next(tensors),) for order in self._orders()]

    def backward(self, parameters: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
        yield np.concatenate(parameters)[np.argsort(np.concatenate(self._orders()))]

    def _orders(self) -> list[np.ndarray]:
        """For each parameter, which row of the tensor each of its rows is."""
        widths = [width for parts in self.parts.values() for width in parts]
        rows = np.arange(self.groups * sum(widths)).reshape(self.groups, -1)
        pieces = iter(np.split(rows, np.cumsum(widths)[:-1], axis=1))
        return [np.concatenate([next(pieces).reshape(-1) for _ in parts]) for parts in self.parts.values()]


def joint_qkvz(config: Qwen3NextConfig, source: str, path: str) -> Rule:
    """The rule for queries, keys, values and gates in one tensor; `path` is the prefix of the layer's parameters."""
    keys = config.linear_key_width
    values = config.linear_value_heads // config.linear_key_heads * config.linear_value_width
    parts = {f"{path}delta_net.qkv_proj.weight": (keys, keys, values), f"{path}delta_net.z_proj.weight": (values,)}
    return Regrouped(source, config.linear_key_heads, parts)


def joint_ba(config: Qwen3NextConfig, source: str, path: str) -> Rule:
    """The rule for what betas and decays are made of, in one tensor; `path` is the prefix of the layer's parameters."""
    heads = (config.linear_value_heads // config.linear_key_heads,)
    parts = {f"{path}delta_net.beta_proj.weight": heads, f"{path}delta_net.alpha_proj.weight": heads}
    return Regrouped(source, config.linear_key_heads, parts)
