"""What a prompt's text must be."""

from __future__ import annotations

from specjax.errors import PromptError


def check_text(text: str) -> None:
    """
    Raises:
        PromptError: the text has half a surrogate pair, or a byte of the command line that is not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt is not Unicode text: {error.reason} at character {error.start},"
            f" {text[error.start : error.end]!r}; leave it out"
        ) from error
