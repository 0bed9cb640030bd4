"""Errors of using a model; errors of reading one are in `checkpoints.errors`."""


class SpecjaxError(ValueError):
    """Base of the errors that a user can mend; the message says how."""


class PromptError(SpecjaxError):
    """A prompt that the model cannot take."""
