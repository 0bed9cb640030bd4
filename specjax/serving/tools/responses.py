"""What functions have answered, where a chat template wants it beside the calls and not in messages of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from checkpoints.tokenizers.chat_template import Message


def beside_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages with those of tools moved into the message whose calls they answer, as `tool_responses`.

    So Gemma 4's template has them. A message of a tool that follows no call stays where it is.
    """
    moved: list[Message] = []
    for message in messages:
        before: dict[str, Any] = dict(moved[-1]) if moved else {}
        if message["role"] != "tool" or not before.get("tool_calls"):
            moved.append(message)
            continue
        names = {call["id"]: call["function"]["name"] for call in before["tool_calls"]}
        only = next(iter(names.values())) if len(names) == 1 else "unknown"
        name = names.get(message.get("tool_call_id"), message.get("name", only))
        answers = [*before.get("tool_responses", ()), {"name": name, "response": _value(message["content"])}]
        moved[-1] = Message(**{**before, "tool_responses": answers})  # type: ignore[typeddict-item]
    return moved


def _value(text: str) -> Any:
    """An object if the text is one in JSON; else the text."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text
