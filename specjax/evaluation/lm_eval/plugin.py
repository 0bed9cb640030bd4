"""The class that lm-evaluation-harness knows as a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from specjax.errors import SpecjaxError
from specjax.evaluation.lm_eval.answers import Answers, Asked, Done
from specjax.evaluation.lm_eval.arguments import Limits, from_arguments
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
    except ImportError as error:
        raise SpecjaxError(
            f"lm-evaluation-harness cannot be imported ({error}); install it: pip install 'specjax[eval]'"
        ) from error
    return model_registry[NAME] if NAME in model_registry else register_model(NAME)(_harness_class())


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


def _harness_class() -> type:
    from lm_eval.api.model import LM
    from tqdm import tqdm

    class SpecjaxLM(LM):
        """Requests go to `Answers`; this class shows progress and fills the harness's cache."""

        def __init__(self, *, answers: Answers | None = None, **arguments: Any) -> None:
            super().__init__()
            self.answers = Answers(*from_arguments(arguments)) if answers is None else answers

        def loglikelihood(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            with self._known("loglikelihood", requests, disable_tqdm) as known:
                return self.answers.loglikelihood(requests, known)

        def loglikelihood_rolling(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[float]:
            with self._known("loglikelihood_rolling", requests, disable_tqdm) as known:
                return self.answers.loglikelihood_rolling(requests, known)

        def generate_until(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[str]:
            with self._known("generate_until", requests, disable_tqdm) as known:
                return self.answers.generate_until(requests, known)

        @contextmanager
        def _known(self, kind: str, requests: Sequence[Asked], disable_tqdm: bool) -> Iterator[Done]:
            with tqdm(total=len(requests), disable=disable_tqdm, desc=f"{kind} requests") as bar:

                def known(number: int, answer: Any) -> None:
                    self.cache_hook.add_partial(kind, requests[number].args, answer)
                    bar.update()

                yield known

        @property
        def tokenizer_name(self) -> str:
            return self.answers.model.path.name

        def chat_template(self, chat_template: bool | str = False) -> str | None:
            return self.answers.template if chat_template else None

        def apply_chat_template(self, chat_history: Sequence[Any], add_generation_prompt: bool = True) -> str:
            return self.answers.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)

    return SpecjaxLM
