"""Drafters in the files that trainers write, beside the small target that shares its tables with them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import checkpoints
from specjax.models import registry
from specjax.models.protocol import Choice, Drafter, Params, Target

FIXTURES = Path(__file__).parent / "fixtures"
TARGET = FIXTURES / "drafter_target" / "hf"
TOLERANCE = 1e-5  # relative RMS, float32


@cache
def target() -> tuple[Target, Params]:
    """The target that shares its embedding table and its head."""
    loaded = checkpoints.load(TARGET, registry.FAMILIES)
    return registry.build(loaded.config)[0], loaded.params


@cache
def loaded_drafter(folder: str) -> tuple[Any, Params]:
    """The config of a drafter, and its parameters beside the target's."""
    loaded = checkpoints.load(FIXTURES / folder, registry.FAMILIES, need_tokenizer=False)
    return loaded.config, {**target()[1], **loaded.params}


def attached(folder: str) -> tuple[Drafter, Params]:
    """A drafter that fits the target, and all parameters."""
    config, params = loaded_drafter(folder)
    return registry.from_file(config).attach(target()[0]), params


@cache
def peer(folder: str, kind: str = "peer") -> dict[str, np.ndarray]:
    """What the trainer's own modules computed."""
    with np.load(FIXTURES / folder / f"{kind}.npz") as arrays:
        return dict(arrays)


def greedy(logits: jax.Array, position: jax.Array, tokens: jax.Array | None = None, before: Any = None) -> Choice:
    """The best token; `logq` has the logits that it was chosen from."""
    best = jnp.argmax(logits, axis=-1)
    token = best if tokens is None else jnp.take_along_axis(tokens, best[:, None], axis=1)[:, 0]
    return Choice(token, logits, jnp.ones(position.shape))
