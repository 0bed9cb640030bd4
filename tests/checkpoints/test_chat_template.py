"""Chat templates are rendered as transformers renders them."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import pytest
from tiny_checkpoints import END, TURN_END, make_tokenizer

from checkpoints import TextTokenizer, TokenizerError
from checkpoints.tokenizers import chat_template
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


def test_leading_tokens_come_once() -> None:
    several = with_template("<|im_end|><|endoftext|>x", leading=(TURN_END, END))
    assert several.encode(render(several, CONVERSATION)) == [TURN_END, END, ord("x")]
    template = "{{ bos_token }}x"
    adds = with_template(template, special_ids={"bos": END, "eos": END}, leading=(END,))
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


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ lipsum(n=10**7) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    ],
)
def test_a_template_that_would_run_for_hours_is_broken_off(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "SECONDS", 0.2)
    traced, start = sys.gettrace(), time.monotonic()
    with pytest.raises(TokenizerError, match=r"it runs for more than 0\.2 seconds"):
        render(with_template(template), CONVERSATION)
    assert time.monotonic() - start < 5
    assert sys.gettrace() is traced


@pytest.mark.parametrize("product", ["'a' * 10**12", "10**12 * [1]", "2 ** 1000000000"])
def test_a_template_cannot_fill_the_memory_by_one_product(product: str) -> None:
    with pytest.raises(TokenizerError, match=r"times are more than 10000000|is larger than 64"):
        render(with_template(f"{{{{ ({product}) | length }}}}"), CONVERSATION)
    assert render(with_template("{{ '=' * 20 }}{{ 2 ** 10 * 3 }}"), CONVERSATION) == "=" * 20 + "3072"
