"""Rules for the layers of the family in both kinds of files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from checkpoints.mapping.rule import Rule
from specjax.models.glm4_moe.config import Glm4MoeConfig
from specjax.models.parts.names import LayerRules, Names, copies


@dataclass(frozen=True)
class LayerNames:
    """Names of a layer's tensors.

    Attributes:
        common: of every layer.
        qk_norms, biases: of norms of q and k, and of biases; in every layer, or in none.
        dense: of the MLP.
        router_bias: of the bias by which experts are chosen.
        experts: makes the rules of everything else that sparse layers have.
    """

    common: Names
    qk_norms: Names
    biases: Names
    dense: Names
    router_bias: Names
    experts: LayerRules


def layer_rules(config: Glm4MoeConfig, names: LayerNames, block: str, path: str, *, sparse: bool) -> Iterator[Rule]:
    """Rules for one layer, with the prefixes of its tensors and of its parameters."""
    yield from copies(names.common, block, path)
    if config.qk_norm:
        yield from copies(names.qk_norms, block, path)
    if config.attention_bias:
        yield from copies(names.biases, block, path)
    if not sparse:
        yield from copies(names.dense, block, path)
        return
    yield from names.experts(block, path)
    if config.moe.selection_bias:
        yield from copies(names.router_bias, block, path)
