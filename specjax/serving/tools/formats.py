"""Which form of calls a model has: its chat template, which shows the model how to call, says it."""

from __future__ import annotations

from specjax.serving.tools.call import CallFormat
from specjax.serving.tools.gemma_calls import GemmaCalls
from specjax.serving.tools.json_calls import BareJson, MarkedJson
from specjax.serving.tools.tagged_calls import TaggedFunctions, TaggedPairs

FORMATS: tuple[tuple[str, CallFormat], ...] = (
    ("<|tool_call>", GemmaCalls()),
    ("<arg_key>", TaggedPairs()),
    ("<function=", TaggedFunctions()),
    ("<tool_call>", MarkedJson()),
    ("<|python_tag|>", BareJson()),
    ('"parameters": dictionary', BareJson()),
)
"""What stands in the template of a form, and the form; the first that is found counts."""


def format_of(template: str | None) -> CallFormat | None:
    """The form of calls of a model with this chat template; None if the template knows nothing of functions."""
    if template is None or "tools" not in template:
        return None
    return next((form for mark, form in FORMATS if mark in template), None)
