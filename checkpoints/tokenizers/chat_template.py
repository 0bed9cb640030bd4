"""Chat templates: how a conversation becomes the text that a model was trained on.

Templates come with the model, as Jinja, and are foreign code: they run in Jinja's sandbox. What they may expect is what
transformers offers them (`utils/chat_template_utils.py`): blocks without the white space around them, `break` and
`continue`, `generation` blocks, `raise_exception`, `strftime_now`, and a `tojson` that does not escape HTML. They may
run for `SECONDS`.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn, NotRequired, TypedDict

import jinja2
import jinja2.sandbox
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import Node
from jinja2.parser import Parser

from checkpoints.errors import TokenizerError
from checkpoints.tokenizers.tokenizer import TextTokenizer

SECONDS = 5.0
"""How long a template may run. Even long conversations take only milliseconds."""
_LONGEST, _LARGEST_POWER = 10**7, 64
"""What products may be: values of a repeated text or list, and exponents."""


class Message(TypedDict):
    """What a template sees of a turn; the role is "system", "user", "assistant" or "tool"."""

    role: str
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


def render(
    tokenizer: TextTokenizer,
    messages: Sequence[Message],
    *,
    continue_last: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    more: Mapping[str, Any] | None = None,
) -> str:
    """The text of a conversation, up to where the model's next turn begins.

    Tokens at its start that encoding adds are left out.

    Args:
        tokenizer: with a template.
        messages: oldest first.
        continue_last: end with the last message's own text, so that the model goes on with it.
        tools: functions that the model may call, in the form of OpenAI's API.
        more: what else the template may read, such as `enable_thinking`.

    Raises:
        TokenizerError: there is no template, it is not valid Jinja, it refuses the conversation, or it runs too long.
    """
    vocabulary = tokenizer.vocabulary
    if vocabulary.chat_template is None:
        raise TokenizerError("the tokenizer has no chat template")
    names = {role: vocabulary.tokens[i] for role, i in vocabulary.special_ids.items()}
    environment = _Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlocks]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    try:
        with _time_limit(SECONDS):
            text = environment.from_string(vocabulary.chat_template).render(
                **{
                    **(more or {}),
                    "messages": list(messages),
                    "add_generation_prompt": not continue_last,
                    "tools": None if tools is None else list(tools),
                    "documents": None,
                    "bos_token": names.get("bos", ""),
                    "eos_token": names.get("eos", ""),
                }
            )
    except Exception as error:  # foreign code
        raise TokenizerError(f"the chat template does not take this conversation: {error}") from error
    if continue_last:
        text = _up_to(text, messages[-1]["content"])
    return text.removeprefix("".join(vocabulary.tokens[i] for i in vocabulary.leading))


def _up_to(text: str, last: str) -> str:
    """The text up to the end of the last message, which a template may have stripped of white space."""
    for shown in (last.lstrip(), last.strip()):
        if (at := text.rfind(shown)) >= 0:
            return text[: at + len(shown)]
    raise TokenizerError("the chat template does not write the last message as it is, so it cannot be continued")


class _Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox, in which also no single product takes long or fills the memory."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute a product or a power, unless the result would be too large."""
        if operator == "**" and abs(right) > _LARGEST_POWER:
            raise jinja2.TemplateError(f"the exponent {right} is larger than {_LARGEST_POWER}")
        for many, times in ((left, right), (right, left)):
            if hasattr(many, "__len__") and isinstance(times, int) and len(many) * times > _LONGEST:
                raise jinja2.TemplateError(f"{len(many)} values {times} times are more than {_LONGEST}")
        return super().call_binop(context, operator, left, right)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Break off the Python code inside the block.

    Jinja has no limit of its own, and signals reach the main thread alone. So each line of a template, and of what it
    calls, is traced.
    """
    end = time.monotonic() + seconds

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > end:
            raise jinja2.TemplateError(f"it runs for more than {seconds:g} seconds")
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)


class _GenerationBlocks(Extension):
    """`{% generation %}` marks what the model has said, for training; here it only encloses it."""

    tags = {"generation"}  # noqa: RUF012  as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.datetime.now().strftime(form)
