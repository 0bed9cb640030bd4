"""The class that lm-evaluation-harness knows as a model. Importing this module needs the harness (the extra `eval`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lm_eval.api.model import LM
from tqdm import tqdm

from specjax.evaluation.lm_eval.answers import Answers, Asked, Done
from specjax.evaluation.lm_eval.arguments import from_arguments


class SpecjaxLM(LM):
    """Requests go to `Answers`; this class shows progress and fills the harness's cache.

    The package's metadata names it as an entry point of the group `lm_eval.models`, where the harness looks for it.
    """

    def __init__(self, *, answers: Answers | None = None, **arguments: Any) -> None:
        """
        Args:
            answers: what answers; None: a model is loaded.
            arguments: of `--model_args`, see `from_arguments`.
        """
        super().__init__()
        self.answers = Answers(*from_arguments(arguments)) if answers is None else answers

    def loglikelihood(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Answer the harness by `Answers.loglikelihood`, with progress."""
        with self._known("loglikelihood", requests, disable_tqdm) as known:
            return self.answers.loglikelihood(requests, known)

    def loglikelihood_rolling(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[float]:
        """Answer the harness by `Answers.loglikelihood_rolling`, with progress."""
        with self._known("loglikelihood_rolling", requests, disable_tqdm) as known:
            return self.answers.loglikelihood_rolling(requests, known)

    def generate_until(self, requests: Sequence[Asked], disable_tqdm: bool = False) -> list[str]:
        """Answer the harness by `Answers.generate_until`, with progress."""
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
        """The model's file, by which the harness tells cached requests of several tokenizers apart."""
        return self.answers.model.path.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The model's own template; the harness writes it into its results."""
        return self.answers.template if chat_template else None

    def apply_chat_template(self, chat_history: Sequence[Any], add_generation_prompt: bool = True) -> str:
        """Write a conversation by the model's template, see `Answers.apply_chat_template`."""
        return self.answers.apply_chat_template(chat_history, add_generation_prompt=add_generation_prompt)
