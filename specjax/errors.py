"""Errors and warnings of using a model; those of reading one are in `checkpoints.errors`."""

from pathlib import Path


class SpecjaxError(ValueError):
    """Base of the errors that a user can mend; the message says how."""


class PromptError(SpecjaxError):
    """A prompt that the model cannot take."""


class NonFiniteWarning(UserWarning):
    """A model's logits are not finite numbers, so that its tokens mean nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: the model's logits are not finite numbers, and its tokens mean nothing; `specjax verify` looks"
            " for damaged weights, and a wider dtype helps where numbers overflow"
        )
