"""The bundled model with fewer layers, by shapes: its programs are of the same operations, and are lowered sooner."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from benchmarks.released_models import opened
from specjax.models.qwen3_5 import FULL_ATTENTION, LINEAR_ATTENTION
from specjax.runtime.loading import Models, open_models


@cache
def short_model() -> Models:
    """One layer of each kind. Many matrices are of one size: a kernel is lowered anew for every size."""
    bundled = open_models(None, None).opened.config
    layers = (LINEAR_ATTENTION, FULL_ATTENTION)
    return opened(replace(bundled, layer_types=layers, mlp_width=2 * bundled.width), "Q8_0")
