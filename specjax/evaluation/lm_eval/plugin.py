"""How specjax gets into the registry of lm-evaluation-harness. Nothing is imported of the harness before it is used."""

from __future__ import annotations

from typing import Any

from specjax.errors import SpecjaxError
from specjax.evaluation.lm_eval.answers import Answers
from specjax.evaluation.lm_eval.arguments import Limits
from specjax.runtime.model import Model
from specjax.runtime.options import GenerateOptions

NAME = "specjax"
"""What `--model` says to mean specjax."""


def register() -> type:
    """Make `--model specjax` known to the harness of this process, and return its class. Calling it again is harmless.

    Raises:
        SpecjaxError: the harness is not installed.
    """
    try:
        import lm_eval.models  # noqa: F401  puts the harness's own models there, which later it does only if it is empty
        from lm_eval.api.registry import model_registry, register_model

        from specjax.evaluation.lm_eval.harness import SpecjaxLM
    except ImportError as error:
        raise SpecjaxError(
            f"lm-evaluation-harness cannot be imported ({error}); install it: pip install 'specjax[eval]'"
        ) from error
    return model_registry[NAME] if NAME in model_registry else register_model(NAME)(SpecjaxLM)


def harness_model(model: Model, options: GenerateOptions | None = None, **limits: Any) -> Any:
    """A loaded model as `lm_eval.simple_evaluate` takes it.

    Args:
        model: with a tokenizer.
        options: how it decodes, as far as requests leave it open.
        **limits: the fields of `Limits`.

    Raises:
        SpecjaxError: the harness is not installed, or see `Answers`.
    """
    made = register()
    return made(answers=Answers(model, options or GenerateOptions(), Limits(**limits)))
