"""What both kinds of files of the family have in common: dense and sparse layers, and a chain of heads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from checkpoints.errors import MissingMTPWarning
from checkpoints.mapping.rule import Rule
from specjax.models.parts.names import Names, copies
from specjax.models.step3_5.config import LayerConfig, Step35Config


@dataclass(frozen=True)
class LayerNames:
    """Names of a layer's tensors.

    Attributes:
        common: of every layer.
        dense, sparse: of the MLP, and of the experts.
        router_bias: of the bias by which experts are chosen.
    """

    common: Names
    dense: Names
    sparse: Names
    router_bias: Names


def layer_rules(config: Step35Config, layer: LayerConfig, block: str, path: str, names: LayerNames) -> Iterator[Rule]:
    """Rules for one layer, with the prefixes of its tensors and of its parameters."""
    yield from copies(names.common, block, path)
    yield from copies(names.sparse if layer.sparse else names.dense, block, path)
    if layer.sparse and config.moe is not None and config.moe.selection_bias:
        yield from copies(names.router_bias, block, path)


def count_heads(declared: int, present: Callable[[int], bool], where: str) -> int:
    """How many of the declared heads, from the first on, are in the file.

    Warns:
        MissingMTPWarning: fewer than declared.
    """
    count = next((index for index in range(declared) if not present(index)), declared)
    if count < declared:
        consequence = "a round drafts as many tokens at most" if count else "nothing can be drafted"
        warnings.warn(
            f"{where}: {declared} MTP heads are declared, but the file has the tensors of {count or 'none'}."
            f" Loading the trunk {'and these heads' if count else 'alone'}: {consequence} with this file.",
            MissingMTPWarning,
            stacklevel=2,
        )
    return count
