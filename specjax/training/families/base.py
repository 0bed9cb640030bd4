"""What training asks of a model family, and what families share in answering."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.tree_util import DictKey
from jaxtyping import Array, Float, Int, PRNGKeyArray

from specjax.models.protocol import FeatureRequest, Params, Target
from specjax.state import KVTypes, SequenceState
from specjax.training.recipe import Recipe

RESIDUAL_WRITERS = {DictKey("o_proj"), DictKey("out_proj"), DictKey("down_proj")}
"""Projections whose output is added to the residual stream."""


class TrainingConfig(Protocol):
    """What training reads of a config, a frozen dataclass: it is a static argument of jitted functions."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def vocab_size(self) -> int:
        """V, the number of rows of the output head."""
        ...

    @property
    def mtp_layers(self) -> int:
        """Layers of the drafter; 0: there is none."""
        ...


class Predictions(NamedTuple):
    """Teacher-forced logits; those in row p predict the token at p + 1.

    Attributes:
        trunk: [B, T, V].
        mtp: one [b, T, V] per draft step, of the first b sequences; of step j (1, 2, ...) rows p >= j mean something.
        routing: for drafters that score a part of the vocabulary, the loss in nats of what chooses this part.
    """

    trunk: Float[Array, "B T V"]
    mtp: tuple[Float[Array, "b T V"], ...]
    routing: Float[Array, ""] | float = 0.0


class ModelFile(NamedTuple):
    """One of the files that a trained model is written to.

    Attributes:
        suffix: what the file's name has after the name that was asked for.
        config, params: what it holds.
    """

    suffix: str
    config: Any
    params: Params


Predict = Callable[[Any, Params, Int[Array, "B T"], int, int], Predictions]


@dataclass(frozen=True)
class Family:
    """How the models of one family are trained.

    Attributes:
        name: on the command line and in the run's description.
        description: of its demo model, for the exported file.
        config_type: class of its configs, see `TrainingConfig`.
        demo_config, recipe: the model that `specjax train` makes by default, and its training.
        initial: (config, key) -> random parameters to begin with.
        fixed: config -> the parameters that no gradient reaches, as a part of the parameter tree.
        predict: (config, params, tokens [B, T], draft steps, sequences b) -> `Predictions`; the drafter's losses reach
            the trunk through what the drafter reads of it, not through embedding table and output head.
        files: (config, params) -> what is exported.
    """

    name: str
    description: str
    config_type: type
    demo_config: TrainingConfig
    recipe: Recipe
    initial: Callable[[Any, PRNGKeyArray], Params]
    predict: Predict
    fixed: Callable[[Any], Params] = lambda _: {}
    files: Callable[[Any, Params], tuple[ModelFile, ...]] = lambda config, params: (ModelFile("", config, params),)


class TrunkPass(NamedTuple):
    """The trunk over whole sequences: logits, the hidden states that the drafter reads, and the state behind them."""

    logits: Float[Array, "B T V"]
    hidden: Float[Array, "B T D"]
    state: SequenceState


def run_trunk(target: Target, params: Params, tokens: Int[Array, "B T"]) -> TrunkPass:
    """Feed whole sequences to a target at once, so that no ring goes round."""
    batch, length = tokens.shape
    zero = jnp.zeros((batch,), jnp.int32)
    layers = target.init_layers(batch, length, rows=1, chunk=length, rollback="replay", kv_types=KVTypes())
    state = SequenceState(layers, None, zero)
    output, state = target.extend(
        params, tokens, zero + length, state, request=FeatureRequest(final_hidden=True), rows="all"
    )
    assert output.logits is not None
    assert output.features.final_hidden is not None
    return TrunkPass(output.logits, output.features.final_hidden, state)


def delayed(rows: Float[Array, "B T *rest"], by: int = 1) -> Float[Array, "B T *rest"]:
    """Row p - `by` in the place of row p; zeros before the first."""
    return jnp.pad(rows[:, : rows.shape[1] - by], ((0, 0), (by, 0), *((0, 0),) * (rows.ndim - 2)))


def scale_residual_writers(params: Params, num_layers: int) -> Params:
    """The parameters with what writes to the residual stream scaled by 1 / sqrt(2 L).

    So the stream's variance at the last layer does not grow with L (Radford et al., "Language Models are Unsupervised
    Multitask Learners", 2019, section 2.3).
    """
    scale = 1 / math.sqrt(2 * num_layers)

    def scaled(path: tuple, value: Array) -> Array:
        return value * scale if RESIDUAL_WRITERS.intersection(path) else value

    return jax.tree_util.tree_map_with_path(scaled, params)
