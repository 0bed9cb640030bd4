"""Chat templates are rendered as transformers renders them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_checkpoints import END, make_tokenizer

from checkpoints import TextTokenizer, TokenizerError
from checkpoints.tokenizers import gguf as tokenizer_gguf
from checkpoints.tokenizers.chat_template import Message, render

CONVERSATION = [
    Message(role="system", content="S"),
    Message(role="user", content="a < 'é'"),
    Message(role="assistant", content="b"),
    Message(role="user", content="c"),
]


def with_template(template: str | None, **changes: object) -> TextTokenizer:
    vocabulary = replace(make_tokenizer().vocabulary, chat_template=template, **changes)
    return tokenizer_gguf.from_vocabulary(vocabulary)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            "{% for m in messages %}{{ m['role'] }}:{{ m.content }};{% endfor %}",
            "system:S;user:a < 'é';assistant:b;user:c;",
        ),
        ("{% if add_generation_prompt %}go{% endif %}{{ eos_token }}", "go<|endoftext|>"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}", "S"),
        ("{{ messages[1] | tojson }}", '{"role": "user", "content": "a < \'é\'"}'),
        ("{% generation %}{{ messages[2].content }}{% endgeneration %}.", "b."),
        ("{% if tools is none and documents is none %}none{% endif %}", "none"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_a_template_finds_what_it_expects(template: str, text: str) -> None:
    assert render(with_template(template), CONVERSATION) == text


def test_a_bos_token_comes_once() -> None:
    template = "{{ bos_token }}x"
    adds = with_template(template, special_ids={"bos": END, "eos": END}, add_bos=True)
    leaves = with_template(template, special_ids={"bos": END, "eos": END})
    assert adds.encode(render(adds, CONVERSATION)) == [END, ord("x")] == leaves.encode(render(leaves, CONVERSATION))


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{% for", "does not take this conversation: unexpected"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_what_a_template_cannot_do_is_said(template: str | None, message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        render(with_template(template), CONVERSATION)
