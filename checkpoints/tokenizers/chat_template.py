"""Chat templates: how a conversation becomes the text that a model was trained on.

Templates come with the model, as Jinja, and are foreign code: they run in Jinja's sandbox. What they may expect is what
transformers offers them (`utils/chat_template_utils.py`): blocks without the white space around them, `break` and
`continue`, `generation` blocks, `raise_exception`, `strftime_now`, and a `tojson` that does not escape HTML.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, NoReturn, TypedDict

import jinja2
import jinja2.sandbox
from jinja2.ext import Extension, LoopControlExtension
from jinja2.nodes import Node
from jinja2.parser import Parser

from checkpoints.errors import TokenizerError
from checkpoints.tokenizers.tokenizer import TextTokenizer


class Message(TypedDict):
    """What a template sees of a turn; the role is "system", "user" or "assistant"."""

    role: str
    content: str


def render(tokenizer: TextTokenizer, messages: Sequence[Message]) -> str:
    """The text of a conversation, up to where the model's next turn begins.

    A bos token at its start is left out if encoding adds one.

    Args:
        tokenizer: with a template.
        messages: oldest first.

    Raises:
        TokenizerError: there is no template, it is not valid Jinja, or it refuses the conversation.
    """
    vocabulary = tokenizer.vocabulary
    if vocabulary.chat_template is None:
        raise TokenizerError("the tokenizer has no chat template")
    names = {role: vocabulary.tokens[i] for role, i in vocabulary.special_ids.items()}
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlocks]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    try:
        text = environment.from_string(vocabulary.chat_template).render(
            messages=list(messages),
            add_generation_prompt=True,
            tools=None,
            documents=None,
            bos_token=names.get("bos", ""),
            eos_token=names.get("eos", ""),
        )
    except Exception as error:  # foreign code
        raise TokenizerError(f"the chat template does not take this conversation: {error}") from error
    return text.removeprefix(names["bos"]) if vocabulary.add_bos else text


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
