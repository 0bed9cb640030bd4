"""A session before its first turn, and what is wrong with the wishes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from specjax.runtime.memory import CutLimits
from specjax.runtime.options import GenerateOptions
from specjax.sessions.context_shift import DEFAULT_KEEP, WhenFull, check_can_shift
from specjax.sessions.session import DEFAULT_POINT_BYTES, Session

if TYPE_CHECKING:
    from specjax.runtime.model import Model

DEFAULT_SLOTS = 4096


def open_session(
    model: Model,
    options: GenerateOptions,
    slots: int | None,
    when_full: WhenFull = "error",
    keep: int = DEFAULT_KEEP,
    point_bytes: int = DEFAULT_POINT_BYTES,
) -> Session:
    """A session without tokens; errors as in `Model.session`."""
    slots = min(model.target.context_length, DEFAULT_SLOTS) if slots is None else slots
    if not 1 < slots <= model.target.context_length:
        raise ValueError(f"slots is {slots}; give 2 to {model.target.context_length}, the model's context")
    if when_full not in get_args(WhenFull):
        raise ValueError(f"when_full is {when_full!r}; known are {', '.join(map(repr, get_args(WhenFull)))}")
    if keep < 0:
        raise ValueError(f"keep is {keep}; it must be at least 0")
    if point_bytes < 0:
        raise ValueError(f"point_bytes is {point_bytes}; give a number of bytes, or 0 to keep no points")
    decoder = model.decoder(options)  # says what is wrong with the options
    session = Session(model, options, slots, when_full, keep, point_bytes)
    if when_full == "shift":
        check_can_shift(decoder)
        if session.cut_when_full is None:
            least = CutLimits.of(decoder, slots).after_writing(slots).least_left
            raise ValueError(
                f"keep={keep} and the {least} newest tokens, which must be left, fill all {slots} slots, so that there"
                " is nothing to drop; keep fewer tokens, or give more slots"
            )
    return session
