"""Speculative decoding in JAX for models that carry their own drafters.

>>> import specjax
>>> model = specjax.load()            # the bundled model; or a GGUF file, or a safetensors directory
>>> model.generate("def add(a, b):", max_tokens=32, draft=3)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specjax.errors import PromptError, SpecjaxError
    from specjax.models.drafters.ngram import NGram
    from specjax.models.parts.drafter import BaseDrafter
    from specjax.models.protocol import Proposal
    from specjax.runtime.generation import GenerateOptions, Generation
    from specjax.runtime.loading import load
    from specjax.runtime.model import Model

__version__ = "0.1.0"

__all__ = [
    "BaseDrafter",
    "GenerateOptions",
    "Generation",
    "Model",
    "NGram",
    "PromptError",
    "Proposal",
    "SpecjaxError",
    "load",
]

_HOMES = {
    "BaseDrafter": "specjax.models.parts.drafter",
    "GenerateOptions": "specjax.runtime.generation",
    "Generation": "specjax.runtime.generation",
    "Model": "specjax.runtime.model",
    "NGram": "specjax.models.drafters.ngram",
    "PromptError": "specjax.errors",
    "Proposal": "specjax.models.protocol",
    "SpecjaxError": "specjax.errors",
    "load": "specjax.runtime.loading",
}


def __getattr__(name: str) -> Any:
    """Import the public names on first use: `checkpoints` imports model configs from this package in turn."""
    if name not in _HOMES:
        raise AttributeError(f"module 'specjax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
