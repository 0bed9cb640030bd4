"""What a model is, in a line."""

from __future__ import annotations

from pallas_kernels.matmul import leaves
from specjax.mesh.plan import size_of
from specjax.models.drafters.trimmed import TRIMMED
from specjax.models.protocol import Drafter, ModelConfig, Params


def summary(name: str, config: ModelConfig, params: Params, drafter: Drafter | None) -> str:
    """Family, size, layers, drafter, vocabulary and context of a model of this name."""
    read = leaves({branch: tree for branch, tree in params.items() if branch != TRIMMED})
    size, num_bytes = sum(map(size_of, read)), sum(leaf.nbytes for leaf in read)
    drafts = f"drafted for by {' and '.join(drafter.keeper.class_names)}" if drafter else "without drafter"
    if (trimmed := params.get(TRIMMED)) is not None:
        drafts += f" with {len(trimmed['tokens'])} tokens"
    return (
        f"{name}: {config.architecture}, {size / 1e6:.1f} M parameters in {num_bytes / 1e6:.1f} MB,"
        f" {config.num_layers} layers, {drafts}, V={config.vocab_size}, context {config.context_length}"
    )
