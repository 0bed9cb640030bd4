"""Speculative decoding in JAX for models that carry their own drafters.

>>> import specjax
>>> model = specjax.load()            # the bundled model; or a GGUF file, or a safetensors directory
>>> model.generate("def add(a, b):", max_tokens=32, draft=3)
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specjax.analysis.diverge import DivergenceReport, diverge
    from specjax.analysis.divergence import find_divergence
    from specjax.analysis.lossless import NotLosslessError, assert_lossless, check_lossless
    from specjax.analysis.memory import MemoryPlan, plan_memory
    from specjax.analysis.planning import Plan, plan
    from specjax.decoding.settings import DraftConfig
    from specjax.errors import NonFiniteWarning, PromptError, SpecjaxError
    from specjax.evaluation import Evaluation
    from specjax.models.drafters.ngram import NGram
    from specjax.models.parts.drafter import BaseDrafter
    from specjax.models.protocol import Proposal
    from specjax.models.registry import FAMILIES
    from specjax.runtime.generation import Generation
    from specjax.runtime.loading import load
    from specjax.runtime.model import Model
    from specjax.runtime.options import GenerateOptions
    from specjax.sessions.session import Session
    from specjax.sessions.tree import session_tree
    from specjax.traces.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "FAMILIES",
    "BaseDrafter",
    "DivergenceReport",
    "DraftConfig",
    "Evaluation",
    "GenerateOptions",
    "Generation",
    "MemoryPlan",
    "Model",
    "NGram",
    "NonFiniteWarning",
    "NotLosslessError",
    "Plan",
    "PromptError",
    "Proposal",
    "Session",
    "SpecjaxError",
    "Trace",
    "assert_lossless",
    "check_lossless",
    "diverge",
    "find_divergence",
    "load",
    "plan",
    "plan_memory",
    "session_tree",
]

_HOMES = {
    "BaseDrafter": "specjax.models.parts.drafter",
    "DivergenceReport": "specjax.analysis.diverge",
    "DraftConfig": "specjax.decoding.settings",
    "Evaluation": "specjax.evaluation",
    "FAMILIES": "specjax.models.registry",
    "GenerateOptions": "specjax.runtime.options",
    "Generation": "specjax.runtime.generation",
    "MemoryPlan": "specjax.analysis.memory",
    "Model": "specjax.runtime.model",
    "NGram": "specjax.models.drafters.ngram",
    "NonFiniteWarning": "specjax.errors",
    "NotLosslessError": "specjax.analysis.lossless",
    "Plan": "specjax.analysis.planning",
    "PromptError": "specjax.errors",
    "Proposal": "specjax.models.protocol",
    "Session": "specjax.sessions.session",
    "SpecjaxError": "specjax.errors",
    "Trace": "specjax.traces.trace",
    "assert_lossless": "specjax.analysis.lossless",
    "check_lossless": "specjax.analysis.lossless",
    "diverge": "specjax.analysis.diverge",
    "find_divergence": "specjax.analysis.divergence",
    "load": "specjax.runtime.loading",
    "plan": "specjax.analysis.planning",
    "plan_memory": "specjax.analysis.memory",
    "session_tree": "specjax.sessions.tree",
}


def _check_neighbours() -> None:
    """
    Raises:
        ImportError: a module of the user's own hides a package that is installed with this one.
    """
    for name in ("checkpoints", "pallas_kernels"):
        spec = find_spec(name)
        found = None if spec is None or spec.origin is None else Path(spec.origin)
        if found is not None and found.resolve() != Path(__file__).resolve().parents[1] / name / "__init__.py":
            raise ImportError(
                f"specjax is installed with a package {name}, but Python finds {found} by that name: rename that, or"
                " start from another folder"
            )


_check_neighbours()


def __getattr__(name: str) -> Any:
    """Import the public names on first use: JAX and the models take over a second, which `specjax --help` can spare."""
    if name not in _HOMES:
        raise AttributeError(f"module 'specjax' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
