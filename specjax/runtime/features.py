"""What goes on inside the target while it reads a text: inputs of layers, and the final hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING

import jax
import numpy as np
from jaxtyping import Float

from specjax.decoding.decoder import Decoder
from specjax.decoding.new_state import new_sequences
from specjax.models.protocol import FeatureRequest
from specjax.runtime.feeding import read
from specjax.runtime.prompts import check_prompts
from specjax.runtime.slots import slots_for

if TYPE_CHECKING:
    from specjax.runtime.model import Model


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """Features of the T tokens of a span, in float32.

    Attributes:
        tokens: those of the span.
        start: the position of the first of them in the text.
        final_hidden: [T, D], what the family's MTP heads read; None if it was not asked for. For most families these
            are the hidden states after the final norm, and `target.unembed` of them are the logits. Those of Step-3.5
            are before it.
        layer_inputs: [T, D] for each layer that was asked for, by its index: the residual stream that enters it. L, the
            number of layers, stands for what leaves the last one, before the final norm.
    """

    tokens: tuple[int, ...]
    start: int
    final_hidden: Float[np.ndarray, "T D"] | None = field(repr=False)
    layer_inputs: dict[int, Float[np.ndarray, "T D"]] = field(repr=False)

    def __repr__(self) -> str:
        end = self.start + len(self.tokens)
        hidden = "" if self.final_hidden is None else ", final_hidden"
        return f"TextFeatures(tokens {self.start} to {end - 1}: inputs of layers {list(self.layer_inputs)}{hidden})"


def span_of(start: int, stop: int | None, length: int) -> tuple[int, int]:
    """The first and the last position, exclusive, of a span of a text, which is given as a slice of a list is.

    Raises:
        ValueError: there is nothing in it.
    """
    begin, end, _ = slice(start, stop).indices(length)
    if begin >= end:
        raise ValueError(f"start={start} and stop={stop} name no token of a text of {length}; see slices of a list")
    return begin, end


def text_features(
    model: Model, tokens: Sequence[int], layers: Sequence[int], final_hidden: bool, start: int, stop: int | None
) -> TextFeatures:
    """See `Model.features`. Features of more than a piece never exist on the device at once."""
    check_prompts(model.target, [tokens], new_tokens=0)
    try:
        wanted = tuple(sorted({index(layer) for layer in layers}))
    except TypeError:
        raise ValueError(f"layers is {layers!r}; give a list of whole numbers, such as [0, 2]") from None
    most = model.target.num_layers
    if unknown := [layer for layer in wanted if not 0 <= layer <= most]:
        raise ValueError(
            f"layers is {list(layers)}, but there are no layers {unknown}: this model has the layers 0 to {most - 1},"
            f" and {most} stands for the output of the last one"
        )
    if not wanted and not final_hidden:
        raise ValueError("nothing is asked for; name some layers, or leave final_hidden=True")
    begin, end = span_of(start, stop, len(tokens))
    request = FeatureRequest(final_hidden, wanted)
    state = new_sequences(Decoder(model.target, None, max_drafts=0), model.params, 1, slots_for(end))
    rows: list[list[np.ndarray]] = []
    position = 0
    for count, output in read(model.target, model.params, state, tokens[:end], request=request, rows="none"):
        own = slice(max(begin - position, 0), count)
        position += count
        if position > begin:
            rows.append([np.asarray(leaf)[0, own].astype(np.float32) for leaf in jax.tree.leaves(output.features)])
    arrays = [np.concatenate(each) for each in zip(*rows, strict=True)]
    return TextFeatures(
        tokens=tuple(tokens[begin:end]),
        start=begin,
        final_hidden=arrays.pop(0) if final_hidden else None,
        layer_inputs=dict(zip(wanted, arrays, strict=True)),
    )
