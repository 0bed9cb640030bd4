"""Rules for the layers of the family, which are dense or sparse, in both kinds of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
