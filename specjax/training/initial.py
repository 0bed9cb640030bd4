"""Initial parameters for training from nothing."""

from __future__ import annotations

from functools import partial

import jax
from jaxtyping import PRNGKeyArray

from specjax.models.protocol import Params
from specjax.training.families.base import TrainingConfig
from specjax.training.families.registry import family_of


@partial(jax.jit, static_argnums=0)
def initial_parameters(config: TrainingConfig, key: PRNGKeyArray) -> Params:
    """The model's random parameters, as the model runs them."""
    return family_of(config).initial(config, key)
